"""An owner and its followers for tests of one message: no faults, no time that passes."""

from __future__ import annotations

from trovemq_broker.cluster_config.entries import (
    ChangeKind,
    ClockMs,
    ConfigChange,
    Entry,
    Kind,
    Position,
    SecretSeal,
)
from trovemq_broker.cluster_config.follower import Follower, Stored
from trovemq_broker.cluster_config.owner import CONNECT_WAIT_MS, FollowerStream, Owner, begin_founding
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_store.files.files import FileSystem
from trovemq_store.files.memory import MemoryFileSystem

START: ClockMs = ClockMs(1_000_000)
LATER: ClockMs = ClockMs(1_000_000 + CONNECT_WAIT_MS)
MARK = "0123456789abcdef"


def founded(
    files: FileSystem | None = None,
    *,
    cluster: str = "c1",
    name: str = "a",
    seal: SecretSeal | None = None,
) -> Owner:
    stored = StoredTable.load(files or MemoryFileSystem(), seal)
    work = begin_founding(stored, name, f"store-{name}", cluster=cluster, mark=MARK)
    work.run()
    stored.finish(work)
    return Owner(stored, name, START)


def follower(name: str = "b", files: FileSystem | None = None, *, seal: SecretSeal | None = None) -> Follower:
    return Follower(StoredTable.load(files or MemoryFileSystem(), seal), name, f"store-{name}", START)


def created(name: str, kind: Kind = Kind.TOPIC, **settings: str) -> ConfigChange:
    return ConfigChange(ChangeKind.CREATE, kind, name, settings=settings)


def deleted(entry: Entry) -> ConfigChange:
    return ConfigChange(ChangeKind.DELETE, entry.kind, entry.name, entry.version)


def altered(entry: Entry, seen: Position | None = None, **settings: str) -> ConfigChange:
    return ConfigChange(ChangeKind.ALTER, entry.kind, entry.name, seen or entry.version, settings)


def make(owner: Owner, *changes: ConfigChange, now_ms: ClockMs = START) -> list[Entry]:
    work = owner.begin(changes)
    refused = [refusal for refusal in work.refusals if refusal is not None]
    try:
        work.run()
    finally:
        owner.finish(work, now_ms)
    if refused:
        raise refused[0]
    return [entry for entry in work.entries if entry is not None]


def stream(owner: Owner, name: str) -> FollowerStream:
    """The open stream of that follower."""
    return owner._followers[name]


def connect(owner: Owner, one: Follower) -> Stored | None:
    """Connects, makes the follower a member, and delivers everything, with the reports."""
    opened = owner.connected(one.hello(), START)
    if opened.membership is not None:
        make(owner, opened.membership)
    return deliver(owner, one)


def deliver(owner: Owner, one: Follower, *, report: bool = True) -> Stored | None:
    stored = None
    opened = stream(owner, one.hello().broker)
    for part in owner.parts_for(opened, START):
        work = one.begin(part)
        if work is not None:
            work.run()
            stored = one.finish(work)
    if stored is not None and report:
        owner.reported(opened, stored.report, START)
    return stored
