"""The summaries of `verify`, `repair` and `restore` as text: a name that people read, and its value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from trovemq_proto.time_text import format_time

_WORDS: Final = {
    "shutdown": "last stop",
    "commitLogMinOffset": "log from",
    "commitLogMaxOffset": "log to",
    "recordsOfDeletedTopics": "records of deleted topics",
    "bytesCut": "bytes that a start cuts",
    "damagedBytes": "damaged bytes",
    "lastStoreTimestamp": "last message stored",
    "queuesRebuilt": "queues rebuilt",
    "queuesKept": "queues kept",
    "units": "queue units",
    "indexFiles": "index files",
    "damagedPlaces": "damaged places left",
    "blankUnits": "blank queue units",
    "queuesShortened": "queues shortened",
    "createdMs": "backup made",
}
_TIMES: Final = {"lastStoreTimestamp", "createdMs"}


def summary_lines(fields: Mapping[str, object]) -> Iterator[str]:
    """One line for each field of a JSON object, its value in a column."""
    named = {_WORDS.get(name, name): _text(name, value) for name, value in fields.items()}
    width = max(map(len, named)) + 2
    for name, text in named.items():
        yield f"{name:<{width}}{text}"


def _text(name: str, value: object) -> str:
    if not isinstance(value, int):
        return str(value)
    return format_time(value) if name in _TIMES else f"{value:,}"
