"""The directory of a local cluster.

| path             | content                                                                           |
|------------------|-----------------------------------------------------------------------------------|
| `cluster.json`   | the members that were ever there, in UTF-8; see below                             |
| `lock`           | locked (flock) by the command that runs; its text is the process id               |
| `daemons.lock`   | locked by that command and its daemons, which inherit the descriptor              |
| `NAME/store/`    | the store of a broker, or the data of etcd                                        |
| `NAME/log`       | the output of a daemon; `NAME/log.1` is its part before                           |

cluster.json is one JSON object, at most 1 MiB, replaced as a whole (written, synced, renamed):

| field                 | type    | meaning                                                                 |
|-----------------------|---------|-------------------------------------------------------------------------|
| `version`             | number  | of this table: 1                                                        |
| `members`             | list    | an object for each member, as follows                                   |
| `members[].role`      | string  | `nameserver`, `broker` or `etcd`                                        |
| `members[].name`      | string  | unique, the name of its folder                                          |
| `members[].group`     | string  | the broker's name; null for other roles                                 |
| `members[].port`      | number  | of gRPC, 1 to 65,535; no two ports are equal                            |
| `members[].http_port` | number  | of /readyz and /metrics, or of etcd's /health, 1 to 65,535              |
| `members[].replication_port` | number | of a node's streams, or of etcd's peers; null for the others     |

The nodes of the group `broker-2` are `broker-2-1`, `broker-2-2`, … A member keeps its ports. Fewer brokers
than before leave the last ones stopped, more add to them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import IO, Final

from trovemq._common.loopback_ports import LOOPBACK, kept_port, port_of
from trovemq.cli.local.members import ROLES, Member
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

VERSION: Final = 1
FILE_BYTES_MAX: Final = 1 << 20
BROKERS_MAX: Final = 256
NODES_MAX: Final = 7
DAEMONS_STOP_S_MAX: Final = 15.0
"""Longer than a daemon's own bound of its stop (10 s)."""
POLL_S: Final = 0.05
_NAME: Final = re.compile(r"[a-z]+(-[1-9][0-9]{0,3}){0,2}")


@asynccontextmanager
async def locked(directory: Path, waits: Callable[[], None] = lambda: None) -> AsyncIterator[int]:
    """Makes the directory, and holds it. Yields the descriptor that daemons inherit.

    Daemons of a command that was killed may still be stopping: it calls `waits`, and waits for them. Raises
    TroveError CLUSTER_RUNNING if another command runs, or they do not end; CLUSTER_DIRECTORY_ILLEGAL.
    """
    own, inherited = _lock_files(directory)
    with own, inherited:
        _hold(own, directory)
        if not _is_free(inherited):
            waits()
            await _until_free(inherited, directory)
        yield inherited.fileno()


def _lock_files(directory: Path) -> tuple[IO[str], IO[str]]:
    try:
        if (directory / "commitlog").exists():
            raise _illegal(f"{directory} is the store of a broker")
        directory.mkdir(parents=True, exist_ok=True)
        return (directory / "lock").open("a+"), (directory / "daemons.lock").open("a+")
    except FileExistsError:
        raise _illegal(f"{directory} is no directory") from None
    except OSError as error:
        raise _illegal(f"{directory}: {error.strerror or error}") from None


def _hold(file: IO[str], directory: Path) -> None:
    if not _is_free(file):
        file.seek(0)
        holder = file.read(20).strip() or "unknown"
        message = f"process {holder} runs the local cluster in {directory}"
        raise TroveError(errors.CLUSTER_RUNNING, message)
    with suppress(OSError):  # a full disk: the error of a second command has no process id then
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), f"{os.getpid()}\n".encode())


def _is_free(file: IO[str]) -> bool:
    """Locks the file, if it is not locked."""
    import fcntl  # late: not every system of a client has it

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _until_free(file: IO[str], directory: Path) -> None:
    deadline = time.monotonic() + DAEMONS_STOP_S_MAX
    while not _is_free(file):
        if time.monotonic() > deadline:
            pids = ", ".join(map(str, _holders(directory / "daemons.lock")))
            message = (
                f"daemons of a command that was killed still run in {directory}: process {pids or 'unknown'}"
            )
            raise TroveError(errors.CLUSTER_RUNNING, message)
        await asyncio.sleep(POLL_S)


def _holders(path: Path) -> list[int]:
    """The processes that have a file open, as far as this user may see them."""
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if descriptor.samefile(path):
                found.add(int(descriptor.parts[2]))
    return sorted(found - {os.getpid()})


def broker_names(count: int) -> list[str]:
    """The names of the first brokers."""
    return [f"broker-{number}" for number in range(1, count + 1)]


def members_of(directory: Path, brokers: int | None) -> tuple[list[Member], list[Member]]:
    """The nameserver and that many brokers, or as many as there are (1 in a new directory); and the members
    that stay stopped. New ones are written; the directory must be locked.

    Raises TroveError CLUSTER_DIRECTORY_ILLEGAL for a file that cannot be read or written.
    """
    path = directory / "cluster.json"
    known = {member.name: member for member in _read(path)}
    if any(member.replication_port is not None for member in known.values()):
        raise _illegal(f"{directory} has replica groups: give --nodes")
    stores = takewhile(lambda name: (directory / name / "store").is_dir(), broker_names(BROKERS_MAX))
    count = brokers or max(1, len([*stores]), sum(member.role == "broker" for member in known.values()))
    wanted = {"nameserver": "nameserver", **dict.fromkeys(broker_names(count), "broker")}
    ports = _free_ports({port for member in known.values() for port in member.ports})
    new = {
        name: Member(role, name, name if role == "broker" else None, next(ports), next(ports))
        for name, role in wanted.items()
        if name not in known
    }
    return _with_new(path, known, new, wanted)


def nodes_of(
    directory: Path, nodes: int, groups: int | None, *, etcd: bool = False
) -> tuple[list[Member], list[Member]]:
    """The nameserver and the nodes of that many replica groups, or of as many as there are (1 in a new
    directory); and the members that stay stopped. As of members_of. `etcd`: by it the nodes choose leaders.

    Raises TroveError CLUSTER_DIRECTORY_ILLEGAL, also where brokers with one copy of their log are there, or
    groups with the other value of `etcd`.
    """
    path = directory / "cluster.json"
    known = {member.name: member for member in _read(path)}
    brokers = [member for member in known.values() if member.role == "broker"]
    if any(member.replication_port is None for member in brokers):
        raise _illegal(
            f"{directory} has brokers that are no nodes of a replica group: name another directory"
        )
    if brokers and ("etcd" in known) is not etcd:
        raise _illegal(
            f"{directory} has groups that choose their leaders by etcd: give --etcd"
            if "etcd" in known
            else f"{directory} has groups without etcd: name another directory"
        )
    count = groups or max(1, len({member.group for member in brokers}))
    named = {f"{group}-{number}": group for group in broker_names(count) for number in range(1, nodes + 1)}
    ports = _free_ports({port for member in known.values() for port in member.ports})
    wanted = [*(["etcd"] if etcd else []), "nameserver", *named]
    new = {
        name: Member("broker", name, group, next(ports), next(ports), next(ports))
        for name, group in named.items()
        if name not in known
    }
    if etcd and "etcd" not in known:
        new["etcd"] = Member("etcd", "etcd", None, next(ports), next(ports), next(ports))
    if "nameserver" not in known:
        new["nameserver"] = Member("nameserver", "nameserver", None, next(ports), next(ports))
    return _with_new(path, known, new, wanted)


def _with_new(
    path: Path, known: dict[str, Member], new: dict[str, Member], wanted: Iterable[str]
) -> tuple[list[Member], list[Member]]:
    """Writes the new members. Returns the wanted ones, and those that stay stopped."""
    if new:
        _write(path, [*known.values(), *new.values()])
    found = known | new
    return [found[name] for name in wanted], [member for name, member in known.items() if name not in wanted]


def _free_ports(taken: set[int]) -> Iterator[int]:
    """Free ports, none of them twice."""
    while True:
        with kept_port() as kept:
            port = port_of(kept)
        if port not in taken:
            taken.add(port)
            yield port


def _write(path: Path, members: Sequence[Member]) -> None:
    document = {"version": VERSION, "members": [asdict(member) for member in members]}
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise _illegal(f"{path}: {error.strerror or error}") from None


def _read(path: Path) -> list[Member]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _illegal(f"{path}: {error.strerror or error}") from None
    try:
        if len(content) > FILE_BYTES_MAX:
            raise ValueError(len(content))
        document = json.loads(content)
        if int(document["version"]) > VERSION:
            raise _illegal(f"{path} was written by a newer version")
        members = [Member(**one) for one in document["members"]]
        _check(members)
    except (ValueError, KeyError, TypeError):
        raise _illegal(f"{path} is not a file of a local cluster") from None
    return members


def _check(members: Sequence[Member]) -> None:
    """Raises ValueError for members that no cluster has."""
    ports = [port for member in members for port in member.ports]
    if not all(type(port) is int and 0 < port < 1 << 16 for port in ports) or len({*ports}) < len(ports):
        raise ValueError(ports)
    for member in members:
        if member.role not in ROLES or not _NAME.fullmatch(member.name) or member.group != _group_of(member):
            raise ValueError(member)
    if len({member.name for member in members}) < len(members):
        raise ValueError(members)


def _group_of(member: Member) -> str | None:
    if member.role != "broker":
        return None
    return member.name if member.replication_port is None else member.name.rpartition("-")[0]


def check_ports(members: Sequence[Member]) -> None:
    """Raises TroveError ADDRESS_IN_USE if another process listens on an address of a member. Blocks."""
    for member in members:
        for port in member.ports:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((LOOPBACK, port))
                except OSError as error:
                    message = f"{LOOPBACK}:{port}, which {member.name} has: {error.strerror or error}"
                    raise TroveError(errors.ADDRESS_IN_USE, message) from None


def _illegal(message: str) -> TroveError:
    return TroveError(errors.CLUSTER_DIRECTORY_ILLEGAL, message)
