"""The messages that a store must have after a crash, by its user's ledger, and whether it has them.

The ledger is a text file with one JSON array a line; a line counts once it is whole.

| line                         | written                        | meaning                          |
|------------------------------|--------------------------------|----------------------------------|
| send, ids, queue, deliver_ms | before the append              | these may be in the store        |
| ack, ids, physical offsets,  | where a broker would reply     | these are                        |
| queue offsets                |                                |                                  |
| end, id, commit              | before a transaction's end     | it may have ended                |
| ended, id, commit, place     | where a broker would reply     | it has                           |
| take, ids                    | before they are acknowledged   | the group may have consumed them |
| taken, ids, log end          | when the events are in the log | it has, if the log has that      |
| reach, queue, offset         | before a durable commit        | it may be another group's offset |
| reached, queue, offset       | after it                       | it is, or a later one            |
| synced, log end              | after each sync                | no power cut removes bytes below |
| trim, physical offset        | before segments go             | the log may begin there          |
| cut, log end                 | by a check                     | the log ended there              |
| seen, id, physical offset    | by a check                     | a delayed message was delivered  |
| gone, ids                    | by a check                     | they are not in the store        |

An id is LIFE.NUMBER.KIND; the kind is plain, delayed or half. Its id alone makes a message's content.

After a kill: everything that has an ack. After a power cut: that too with sync flush; with async flush the
messages below the last sync, and of the later ones a beginning without gaps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from trovemq_proto.positions import EpochMs, QueueId

TOPIC: Final = "orders"
QUEUES: Final = 4
WORKERS: Final = "workers"
READERS: Final = "readers"
SHARED_KEYS: Final = 13


@dataclass(frozen=True, slots=True)
class Content:
    """The message of one id."""

    body: bytes
    keys: tuple[str, str]
    tag: str


@cache
def content(identifier: str) -> Content:
    """Mostly small, now and then several pages."""
    source = random.Random(identifier)
    size = source.randrange(2_000, 6_000) if source.random() < 0.06 else source.randrange(0, 500)
    keys = (f"k-{identifier}", f"shared-{source.randrange(SHARED_KEYS)}")
    return Content(identifier.encode() + b":" + source.randbytes(size), keys, f"t{source.randrange(3)}")


@dataclass(slots=True)
class Sent:
    """The ledger's view of one message."""

    identifier: str
    queue_id: QueueId
    deliver_ms: EpochMs
    acknowledged: bool = False
    physical_offset: int = -1
    queue_offset: int = -1
    end_tried: bool | None = None
    """Of a half message: whether a commit was tried, a rollback, or neither."""
    ended: bool = False
    place: int = -1
    """Where the committed or delivered copy was found."""

    @property
    def kind(self) -> str:
        return self.identifier.rpartition(".")[2]


def may_be_twice(identifier: str) -> bool:
    """A kill between the delivery of a delayed message and the event that says so delivers it again."""
    return identifier.endswith(".delayed")


@dataclass(slots=True)
class History:
    """A ledger that was read."""

    sent: dict[str, Sent] = field(default_factory=dict)
    take_tried: set[str] = field(default_factory=set)
    taken: list[tuple[int, list[str]]] = field(default_factory=list)
    reach_tried: dict[int, int] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    trims: set[int] = field(default_factory=lambda: {0})
    synced: int = 0

    @classmethod
    def read(cls, path: Path) -> History:
        history = cls()
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
            if not line:
                continue
            try:
                entry = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue  # torn by a kill: the next life began a new line
            history.add(*entry)
        return history

    @property
    def acknowledged_count(self) -> int:
        return sum(sent.acknowledged for sent in self.sent.values())

    def consumed(self, log_end_max: int) -> set[str]:
        """The messages that the group has acknowledged by events that lie below."""
        return {identifier for end, ids in self.taken if end <= log_end_max for identifier in ids}

    def add(self, what: str, *values: Any) -> None:  # noqa: C901  one branch a kind of line
        """One line."""
        if what == "send":
            ids, queue_id, deliver_ms = values
            for identifier in ids:
                self.sent[identifier] = Sent(identifier, queue_id, deliver_ms)
        elif what == "ack":
            for identifier, physical_offset, queue_offset in zip(*values, strict=True):
                sent = self.sent[identifier]
                sent.acknowledged = True
                sent.physical_offset, sent.queue_offset = physical_offset, queue_offset
        elif what == "end":
            self.sent[values[0]].end_tried = values[1]
        elif what == "ended":
            identifier, _, place = values
            self.sent[identifier].ended, self.sent[identifier].place = True, place
        elif what == "seen":
            self.sent[values[0]].place = values[1]
        elif what == "take":
            self.take_tried |= set(values[0])
        elif what == "taken":
            self.taken.append((values[1], values[0]))
        elif what == "reach":
            self.reach_tried[values[0]] = values[1]
        elif what == "reached":
            self.reached[values[0]] = values[1]
        elif what == "synced":
            self.synced = values[0]
        elif what == "trim":
            self.trims.add(values[0])
        elif what == "gone":
            for identifier in values[0]:  # if it comes back, it is found and was never sent
                del self.sent[identifier]
        elif what == "cut":
            self._cut(values[0])

    def _cut(self, log_end: int) -> None:
        """Later messages are lost; other records will lie there."""
        for sent in self.sent.values():
            if sent.physical_offset >= log_end:
                sent.acknowledged = False
            if sent.ended and sent.place >= log_end:
                sent.ended, sent.place = False, -1
        self.taken = [(end, ids) for end, ids in self.taken if end <= log_end]


class Ledger:
    """Writes lines as they happen; each is with the operating system when add() returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._file.write(b"\n")  # a torn line of the life before ends here

    def add(self, *entry: object) -> None:
        self._file.write(msgspec.json.encode(entry) + b"\n")
