"""The input of `produce`: one message per line, JSON value, CSV row, or object of `pull --json`."""

from __future__ import annotations

import codecs
import csv
import json
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import IO, Any, Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.message_objects import body_of

LINE_BYTES_MAX: Final = 256 << 20


class InputFormat(StrEnum):
    """How the input is read."""

    LINES = "lines"
    JSON = "json"
    CSV = "csv"
    MESSAGES = "messages"


_BY_SUFFIX: Final = {
    ".csv": InputFormat.CSV,
    ".json": InputFormat.JSON,
    ".jsonl": InputFormat.JSON,
    ".ndjson": InputFormat.JSON,
}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message of the input. line: the number of its last line, from 1."""

    body: bytes
    line: int
    keys: tuple[str, ...] = ()
    tag: str | None = None
    message_id: str | None = None
    properties: Mapping[str, str] | None = None
    message_group: str | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """Which members of a JSON object, or columns of a CSV file, are a message's keys, tag, message id and
    message group."""

    keys: Sequence[str] = ()
    tag: str | None = None
    message_id: str | None = None
    message_group: str | None = None

    @property
    def named(self) -> bool:
        """Whether any is given."""
        return bool(self.keys or self.tag or self.message_id or self.message_group)


def format_of(file: str) -> InputFormat:
    """The format by the file's name; lines if the name does not say."""
    return _BY_SUFFIX.get(PurePath(file).suffix.lower(), InputFormat.LINES)


def read_messages(file: IO[bytes], format_: InputFormat, fields: Fields) -> Iterator[Outgoing]:
    """The messages in their order, without empty lines.

    Raises TroveError REQUEST_ILLEGAL, with the number of the line, and MESSAGE_SIZE_EXCEEDED.
    """
    if format_ is InputFormat.CSV:
        return _rows(file, fields)
    if format_ is InputFormat.LINES:
        return (Outgoing(line, number) for number, line in _lines(file))
    make: Callable[[bytes, int], Outgoing]
    if format_ is InputFormat.JSON:
        make = lambda line, number: _of_json(line, number, fields)  # noqa: E731
    else:
        make = _of_message
    return (make(line, number) for number, line in _lines_of_text(file))


def _lines_of_text(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines, without the byte order mark with which some editors begin a file."""
    for number, line in _lines(file):
        yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """(number, line) without its end."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            text = f"line {number} has more than {LINE_BYTES_MAX:,} bytes"
            raise TroveError(errors.MESSAGE_SIZE_EXCEEDED, text, size_max=LINE_BYTES_MAX)
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if line:
            yield number, line


def _of_json(line: bytes, number: int, fields: Fields) -> Outgoing:
    """The line is the body."""
    value = _parsed(line, number)
    if not fields.named:
        return Outgoing(line, number)
    if not isinstance(value, dict):
        raise _illegal(number, "is not a JSON object, so it has no fields")
    return _with_fields(line, number, value, fields)


def _rows(file: IO[bytes], fields: Fields) -> Iterator[Outgoing]:
    """Each row as a JSON object of texts; the first row has the names."""
    number = 0

    def text() -> Iterator[str]:
        nonlocal number
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise _illegal(number, "is not UTF-8") from None

    try:
        rows = csv.DictReader(text(), strict=True)
        names = rows.fieldnames or ()
        if twice := [name for name in names if list(names).count(name) > 1]:
            raise _illegal(number, f"has two columns {twice[0]!r}")
        for row in rows:
            if None in row or None in row.values():
                raise _illegal(number, f"has not the {len(names)} columns of the first line")
            body = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()
            yield _with_fields(body, number, row, fields)
    except csv.Error as error:
        raise _illegal(number, f"is not CSV: {error}") from None


def _with_fields(body: bytes, number: int, value: Mapping[str, Any], fields: Fields) -> Outgoing:
    def text(name: str) -> str:
        if name not in value:
            raise _illegal(number, f"has no field {name!r}; it has {', '.join(map(str, list(value)[:20]))}")
        found = value[name]
        if isinstance(found, str):
            return found
        if isinstance(found, bool) or not isinstance(found, int):
            raise _illegal(number, f"has neither text nor a whole number in {name!r}")
        return str(found)

    return Outgoing(
        body,
        number,
        tuple(text(name) for name in fields.keys),
        text(fields.tag) if fields.tag else None,
        text(fields.message_id) if fields.message_id else None,
        message_group=text(fields.message_group) if fields.message_group else None,
    )


def _of_message(line: bytes, number: int) -> Outgoing:
    """An object of `pull --json`: body, keys, tag, message group, the sender's properties."""
    from trovemq_proto.records import PROPERTY_SHARDING_KEY
    from trovemq_proto.records.internal_properties import is_reserved

    value = _parsed(line, number)
    try:
        body = body_of(value) if isinstance(value, dict) else None
    except (Base64Error, ValueError):
        raise _illegal(number, "has a bodyBase64 that is not base64") from None
    if body is None:
        raise _illegal(number, "is not a message as `pull --json` prints it: it has no body")
    keys, tag, properties = value.get("keys"), value.get("tags"), value.get("properties") or {}
    texts = [*properties.items()] if isinstance(properties, dict) else [(None, None)]
    if not all(isinstance(one, str) for pair in texts for one in pair):
        raise _illegal(number, "has properties that are not texts by name")
    if not isinstance(keys, str | None) or not isinstance(tag, str | None):
        raise _illegal(number, "has keys or tags that are no text")
    own = {name: text for name, text in properties.items() if not is_reserved(name)}
    group = properties.get(PROPERTY_SHARDING_KEY)
    return Outgoing(body, number, tuple((keys or "").split()), tag, None, own or None, group)


def _parsed(line: bytes, number: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise _illegal(
            number, f"is not JSON: {error.msg} at column {error.colno} (each line is one value)"
        ) from None
    except (UnicodeDecodeError, RecursionError):
        raise _illegal(number, "is not JSON in UTF-8") from None


def _illegal(line: int, what: str) -> TroveError:
    return TroveError(errors.REQUEST_ILLEGAL, f"line {line} {what}", line=line)
