"""The columns of `send_batch`: checked for their lengths, sized, and cut into frames."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import NoneType

from trovemq._common.arguments import check_optional_text, check_sequence, check_texts
from trovemq._produce.column_batch import Columns
from trovemq._produce.outgoing import RECORD_OVERHEAD
from trovemq._produce.unique_keys import next_unique_keys
from trovemq.send_arguments import Keys
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.priorities import PROPERTY_PRIORITY, check_priority
from trovemq_proto.records.properties import not_of

Tags = Sequence[str | None] | str | None
Properties = Sequence[Mapping[str, str] | None] | Mapping[str, str] | None


def columns_of(
    bodies: Sequence[bytes],
    keys: Sequence[Keys] | None,
    tags: Tags,
    properties: Properties,
    message_ids: Sequence[str] | None,
    priority: Sequence[int | None] | int | None = None,
) -> Columns:
    """The columns with their size. Raises TroveError REQUEST_ILLEGAL if their lengths differ,
    PROPERTY_ILLEGAL for a priority outside of 0 to 9."""
    count = len(bodies)
    _check_types(keys, tags, properties, message_ids)
    columns: dict[str, object] = {"keys": keys, "message_ids": message_ids}
    columns["priority"] = None if isinstance(priority, int) else priority
    columns["tags"] = None if isinstance(tags, str) else tags
    columns["properties"] = None if isinstance(properties, Mapping) else properties
    for name, column in columns.items():
        if isinstance(column, str):
            raise TroveError(errors.REQUEST_ILLEGAL, f"{name} is one text; give one item a message")
        if isinstance(column, Sequence) and len(column) != count:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{len(column)} {name} for {count} bodies")
    if priority is not None:
        properties = _with_priority(properties, priority, count)
    size = sum(map(len, bodies)) + _beside_bodies(count, keys, tags, properties, message_ids)
    return Columns(
        bodies, next_unique_keys(count) if message_ids is None else message_ids, keys, tags, properties, size
    )


def _check_types(keys: object, tags: object, properties: object, message_ids: object) -> None:
    """Raises TroveError, which names the column, for values that are not text."""
    if keys is not None and not isinstance(keys, str):
        several = check_sequence("keys", keys, errors.KEY_ILLEGAL)
        if not set(map(type, several)) <= {str, NoneType}:
            for each in several:
                if not isinstance(each, str | None):
                    check_texts("keys", each, errors.KEY_ILLEGAL)
    if message_ids is not None and not isinstance(message_ids, str):
        check_texts("message_ids", message_ids, errors.UNIQUE_KEY_ILLEGAL)
    if tags is not None and not isinstance(tags, str):
        several = check_sequence("tags", tags, errors.TAG_ILLEGAL)
        if not set(map(type, several)) <= {str, NoneType}:
            for tag in several:
                check_optional_text("tags", tag, errors.TAG_ILLEGAL)
    if isinstance(properties, Mapping):
        _check_properties(properties)
    elif properties is not None:
        for own in check_sequence("properties", properties, errors.PROPERTY_ILLEGAL):
            if own is not None:
                _check_properties(own)


def _check_properties(properties: object) -> None:
    if not isinstance(properties, Mapping):
        text = f"properties is a mapping of texts, {not_of(properties)}"
        raise TroveError(errors.PROPERTY_ILLEGAL, text, argument="properties")
    check_texts("properties", list(properties), errors.PROPERTY_ILLEGAL)
    check_texts("properties", list(properties.values()), errors.PROPERTY_ILLEGAL)


def _with_priority(
    properties: Properties, priority: Sequence[int | None] | int, count: int
) -> list[Mapping[str, str]] | Mapping[str, str]:
    """The properties in the encoder's form, with the priorities."""
    if isinstance(priority, int):
        own = {PROPERTY_PRIORITY: check_priority(priority)}
        if properties is None or isinstance(properties, Mapping):
            return {**(properties or {}), **own}
        return [{**(each or {}), **own} for each in properties]
    texts = [None if each is None else check_priority(each) for each in priority]
    all_ = [properties] * count if properties is None or isinstance(properties, Mapping) else properties
    return [
        {**(each or {})} if text is None else {**(each or {}), PROPERTY_PRIORITY: text}
        for each, text in zip(all_, texts, strict=True)
    ]


def _beside_bodies(
    count: int,
    keys: Sequence[Keys] | None,
    tags: Tags,
    properties: Properties,
    message_ids: Sequence[str] | None,
) -> int:
    """An upper limit of the records' size without their bodies, for ASCII texts."""
    size = count * RECORD_OVERHEAD
    if keys is not None:
        try:
            size += sum(map(len, keys)) + count  # type: ignore[arg-type]  # None is the slow path
        except TypeError:
            size += sum(len(key) for key in keys if key is not None) + count
        if not all(type(key) is str for key in keys):
            size += sum(sum(map(len, key)) for key in keys if key is not None and type(key) is not str)
    if isinstance(tags, str):
        size += count * len(tags)
    elif tags is not None:
        size += sum(len(tag) for tag in tags if tag is not None)
    if isinstance(properties, Mapping):
        size += count * _text_size(properties)
    elif properties is not None:
        size += sum(_text_size(own) for own in properties if own is not None)
    return size + (sum(map(len, message_ids)) if message_ids is not None else 0)


def _text_size(properties: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) + 2 for name, value in properties.items())


def split_columns(columns: Columns, bytes_max: int) -> Iterator[Columns]:
    """Parts in order, each of at most `bytes_max` bytes (a single larger message is one part)."""
    if columns.size <= bytes_max:
        yield columns
        return
    count = len(columns.bodies)
    beside = (columns.size - sum(map(len, columns.bodies))) // count + 1
    ends = list(accumulate(len(body) + beside for body in columns.bodies))
    start, before = 0, 0
    while start < count:
        stop = max(start + 1, bisect_right(ends, before + bytes_max))
        size = ends[stop - 1] - before
        yield _slice(columns, start, stop, size)
        start, before = stop, ends[stop - 1]


def _slice(columns: Columns, start: int, stop: int, size: int) -> Columns:
    keys, tags, properties = columns.keys, columns.tags, columns.properties
    return Columns(
        columns.bodies[start:stop],
        columns.message_ids[start:stop],
        None if keys is None else keys[start:stop],
        tags if tags is None or isinstance(tags, str) else tags[start:stop],
        properties if properties is None or isinstance(properties, Mapping) else properties[start:stop],
        size,
    )
