"""Numbered messages: a record's producer id and its sequence number.

| property           | value                                                                       |
|--------------------|-----------------------------------------------------------------------------|
| `TROVEMQ_PRODUCER` | the producer's id: 1 to 64 letters (ASCII), digits, `-`, `_`, `.`;          |
|                    | of a user: the access key and `:` before it                                 |
| `TROVEMQ_SEQUENCE` | its number among the producer's sends to the topic: decimal, 0 to 2**63 - 1 |

Only messages that a producer sent have a number that counts. Copies that the broker makes (commits,
deliveries of delayed messages) do not, and messages that wait in another topic (half and delayed ones) are
not numbered.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import PROPERTY_PRODUCER, PROPERTY_SEQUENCE
from trovemq_proto.records.property_scan import PropertyScan
from trovemq_store.index.trees.unique_keys import copies

DEPTH: Final = 2_048
"""How many sequences of a producer are known: the highest one and those just below it."""
SEQUENCE_MAX: Final = 2**63 - 1

_PRODUCER: Final = PROPERTY_PRODUCER.encode()
_SEQUENCE: Final = PROPERTY_SEQUENCE.encode()
_NAMES: Final = (_PRODUCER, _SEQUENCE)
_ID: Final = re.compile(rb"(?:[A-Za-z0-9_.@-]{1,64}:)?[A-Za-z0-9._-]{1,64}")
_DIGITS_MAX: Final = 19


class SequencedRecord(NamedTuple):
    """A record, by its index in its batch, and its number."""

    record: int
    producer: bytes
    sequence: int


def has_numbers(batch: RecordBatch) -> bool:
    return any(name in scan.joined for scan in batch.property_scans for name in _NAMES)


def numbers_of(batch: RecordBatch) -> list[SequencedRecord]:
    """The records that have a number, in their order. TroveError PRODUCER_SEQUENCE_ILLEGAL if a property
    is not a number."""
    return _read(batch, checked=True)


def stored_numbers(batch: RecordBatch) -> list[SequencedRecord]:
    """The records of the log that have a number, in their order. A property that is not a number counts as
    missing."""
    return _read(batch, checked=False)


def check_producer_id(text: bytes) -> None:
    """TroveError PRODUCER_SEQUENCE_ILLEGAL."""
    if not _ID.fullmatch(text):
        raise _illegal(
            f"the producer id {_shown(text)} is not 1 to 64 letters (ASCII), digits, '-', '_' or '.', "
            "after USER: or without it"
        )


def _read(batch: RecordBatch, *, checked: bool) -> list[SequencedRecord]:
    found: list[SequencedRecord] = []
    if not has_numbers(batch):
        return found
    copied = set(copies(batch).nonzero()[0].tolist())
    good: set[bytes] = set()
    for scan in batch.property_scans:
        producers, sequences = _values(scan, _PRODUCER), _values(scan, _SEQUENCE)
        records = producers.keys() if producers.keys() == sequences.keys() else producers.keys() | sequences
        for record in sorted(records):
            producer, text = producers.get(record, b""), sequences.get(record, b"")
            if record in copied:
                continue
            if producer not in good and _ID.fullmatch(producer):
                good.add(producer)
            if producer in good and text.isdigit() and len(text) <= _DIGITS_MAX:
                sequence = int(text)
                if sequence <= SEQUENCE_MAX:
                    found.append(SequencedRecord(record, producer, sequence))
                    continue
            if checked:
                check_producer_id(producer)
                raise _illegal(f"the sequence {_shown(text)} is not a whole number of 0 to {SEQUENCE_MAX}")
    return found


def _values(scan: PropertyScan, name: bytes) -> dict[int, bytes]:
    slices, joined = scan.find(name), scan.joined
    rows = zip(slices.records.tolist(), slices.starts.tolist(), slices.ends.tolist(), strict=True)
    return {record: joined[start:end] for record, start, end in rows}


def _shown(text: bytes) -> str:
    return repr(text[:80].decode("utf-8", "replace")) if text else "(none)"


def _illegal(text: str) -> TroveError:
    return TroveError(errors.PRODUCER_SEQUENCE_ILLEGAL, text)
