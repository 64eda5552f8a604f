"""Injects faults for tests of programs: faults that any client can meet, but often and repeatable.

    with trovemq.testing.broker(faults=Faults(seed=7, duplicates=0.2, redeliveries=0.2)) as broker:
        ...                                  # the program connects to broker.url

The faults are made in the client, between the broker and the program; the broker and its store are real. A
fault is drawn from the seed and the message's place (topic, queue, offset, attempt), not from the order of
events. So the same messages have the same faults in each run, however the tasks of the program run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.properties import not_of

_DRAW_SIZE: Final = 8  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often something goes wrong: shares from 0 to 1.

    Attributes:
        seed: Determines the faults.
        duplicates: Messages that `send` stores twice, with one message id, like a sender that repeats a send
            in doubt.
        lost_answers: Messages that are stored, and whose `send` raises BROKER_UNREACHABLE with in_doubt.
        slow_disk: Messages whose acknowledgement comes late.
        slow_disk_ms: How late.
        delays: Received messages that come late. Others overtake them, but in an orderly group none of their
            own message group.
        reorderings: Received messages that come after a later one; in an orderly group after one of another
            message group. If none comes, they wait for `delay_ms`.
        delay_ms: The longest delay.
        redeliveries: Acknowledged messages that are delivered again, as if the acknowledgement was lost.
        disconnects: Messages that are lost with a breaking connection; they come with the next attempt.
    """

    seed: int = 0
    duplicates: float = 0.0
    lost_answers: float = 0.0
    slow_disk: float = 0.0
    slow_disk_ms: int = 200
    delays: float = 0.0
    reorderings: float = 0.0
    delay_ms: int = 50
    redeliveries: float = 0.0
    disconnects: float = 0.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            limit = 1 if one.type == "float" else 1 << 31
            if not isinstance(value, int | float):
                text = f"{one.name} is a number, {not_of(value)}"
                raise TroveError(errors.REQUEST_ILLEGAL, text, field=one.name)
            if not 0 <= value <= limit:
                text = f"{one.name}={value} is not in 0..{limit}"
                raise TroveError(errors.REQUEST_ILLEGAL, text, field=one.name)

    def draw(self, fault: str, *place: object) -> float:
        """A number from 0 to 1, always the same for a fault, a place and the seed."""
        text = "|".join(map(str, (self.seed, fault, *place)))
        drawn = blake2b(text.encode(), digest_size=_DRAW_SIZE).digest()
        return int.from_bytes(drawn, "big") / (1 << 8 * _DRAW_SIZE)

    def strikes(self, fault: str, *place: object) -> bool:
        """Whether the fault of that name happens there."""
        share: float = getattr(self, fault)
        return self.draw(fault, *place) < share

    def text(self) -> str:
        """The faults in the form for a URL: `seed:7,duplicates:0.2`."""
        given = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return ",".join(f"{name}:{value}" for name, value, default in given if value != default)

    @classmethod
    def parse(cls, text: str) -> Faults:
        """The inverse of `text`. Raises TroveError REQUEST_ILLEGAL."""
        types = {one.name: int if one.type == "int" else float for one in fields(cls)}
        given: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, _, number = part.partition(":")
            try:
                given[name] = types[name](number)
            except (KeyError, ValueError):
                known = ", ".join(types)
                problem = f"faults have no {part[:80]!r}; they are NAME:NUMBER of {known}"
                raise TroveError(errors.REQUEST_ILLEGAL, problem) from None
        return cls(**given)
