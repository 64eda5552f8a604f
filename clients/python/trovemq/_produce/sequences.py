"""Numbers for a producer's messages, by which a broker recognises replays and gaps (option deduplicate).

Each broker checks its own numbers, so there is one sequence per broker, which continues after the broker's
last number. A message gets its number when its frame is written for the first time, and keeps it for that
broker, however often it is sent again.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.internal_properties import is_internal
from trovemq_proto.records.layout import PROPERTY_PRODUCER, PROPERTY_SEQUENCE
from trovemq_proto.records.properties import check_property

OVERHEAD: Final = 192
"""The most bytes that a number adds to a record."""
_ID: Final = re.compile(r"(?:[A-Za-z0-9_.@-]{1,64}:)?[A-Za-z0-9._-]{1,64}", re.ASCII)

Properties = Sequence[Mapping[str, str] | None] | Mapping[str, str] | None


def own_id(producer_id: str, access_key: str | None) -> str:
    """The id at the brokers: that of a user begins with the access key, and belongs to this user."""
    return producer_id if access_key is None or ":" in producer_id else f"{access_key}:{producer_id}"


class SequenceAssigner:
    """Numbers the messages of one producer and topic. `producer_id`: None to make one. `access_key`: the
    user's; a made id begins with it. Raises TroveError PRODUCER_SEQUENCE_ILLEGAL."""

    def __init__(self, producer_id: str | None = None, access_key: str | None = None) -> None:
        if producer_id is not None and not _ID.fullmatch(producer_id):
            raise TroveError(
                errors.PRODUCER_SEQUENCE_ILLEGAL,
                f"the producer id {producer_id[:80]!r} is not 1 to 64 letters (ASCII), digits, '-', '_' or "
                "'.', after USER: or without it",
            )
        own = uuid.uuid4().hex if producer_id is None else producer_id
        self.producer_id: Final = own_id(own, access_key)
        self._next: dict[str, int] = {}

    def knows(self, broker: str) -> bool:
        """Whether that broker has returned the producer's last number."""
        return broker in self._next

    def begin(self, broker: str, next_sequence: int) -> None:
        """Sets the broker's answer."""
        self._next.setdefault(broker, next_sequence)

    def take(self, broker: str, count: int) -> range:
        """The next numbers for that broker."""
        first = self._next[broker]
        self._next[broker] = first + count
        return range(first, first + count)

    def block(self, sequence: int) -> bytes:
        """The encoded properties of one number."""
        text = f"{PROPERTY_PRODUCER}\x01{self.producer_id}\x02{PROPERTY_SEQUENCE}\x01{sequence}\x02"
        return text.encode("ascii")

    def with_numbers(self, properties: Properties, sequences: range) -> list[Mapping[str, str]]:
        """The properties of each message, with its number."""
        rows: Sequence[Mapping[str, str] | None]
        if properties is None or isinstance(properties, Mapping):
            rows = [properties] * len(sequences)
        else:
            rows = properties
        for own in rows:
            for name in filter(is_internal, own or ()):
                check_property(name, "")  # refuses the name: callers cannot set the number
        return [
            {**(own or {}), PROPERTY_PRODUCER: self.producer_id, PROPERTY_SEQUENCE: str(sequence)}
            for own, sequence in zip(rows, sequences, strict=True)
        ]
