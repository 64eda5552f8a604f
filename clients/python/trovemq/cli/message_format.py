r"""-f: messages in a form of the user's choice, in kcat's language.

| part | meaning |
| --- | --- |
| `%s`, `%S` | the body, its length |
| `%k`, `%K` | the keys (a blank between two of them), their length |
| `%t`, `%p`, `%o` | topic, queue, queue offset |
| `%g` | the tag (not in kcat) |
| `%h` | the sender's properties, `name=value` with commas, by name |
| `%T` | the store time, epoch ms |
| `%%` | `%` |
| `\n`, `\r`, `\t`, `\0`, `\\`, `\xNN` | line feed, …, a byte |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import typer

from trovemq_proto.message_objects import body_of

Fields = Mapping[str, object]
_Part = Callable[[Fields], bytes]

_TOKEN: Final = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)|[^%\\]+", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


class MessageFormat:
    """A parsed format."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts: Final = parts

    def render(self, fields: Fields) -> bytes:
        """One message, of its object."""
        return b"".join(part(fields) for part in self._parts)


def parse_message_format(text: str | MessageFormat) -> MessageFormat:
    """Raises typer.BadParameter (usage) for an unknown part."""
    if isinstance(text, MessageFormat):
        return text
    return MessageFormat([_part(match) for match in _TOKEN.finditer(text)])


def _part(match: re.Match[str]) -> _Part:
    token, escape = match[1], match[2]
    if token is not None:
        if token not in _VALUES:
            known = " ".join(f"%{name}" for name in _VALUES)
            raise typer.BadParameter(f"%{token} is not known: {known}")
        return _VALUES[token]
    if escape is None:
        return _constant(match[0].encode("utf-8", "surrogateescape"))
    if len(escape) == 3:
        return _constant(bytes.fromhex(escape[1:]))
    if escape not in _ESCAPES:
        raise typer.BadParameter(f"\\{escape} is not known: \\n \\r \\t \\0 \\\\ \\xNN")
    return _constant(_ESCAPES[escape])


def _constant(value: bytes) -> _Part:
    return lambda _fields: value


def _text(name: str) -> _Part:
    return lambda fields: _encoded(fields.get(name))


def _encoded(value: object) -> bytes:
    return b"" if value is None else str(value).encode("utf-8", "surrogateescape")


def _body(fields: Fields) -> bytes:
    return body_of(fields) or b""


def _keys(fields: Fields) -> bytes:
    return _encoded(fields.get("keys"))


def _properties(fields: Fields) -> bytes:
    from trovemq_proto.records.internal_properties import is_reserved

    found = fields.get("properties")
    pairs = sorted(found.items()) if isinstance(found, Mapping) else ()
    return _encoded(",".join(f"{name}={value}" for name, value in pairs if not is_reserved(name)))


_VALUES: Final[Mapping[str, _Part]] = {
    "s": _body,
    "S": lambda fields: _encoded(len(_body(fields))),
    "k": _keys,
    "K": lambda fields: _encoded(len(_keys(fields))),
    "t": _text("topic"),
    "p": _text("queueId"),
    "o": _text("queueOffset"),
    "g": _text("tags"),
    "h": _properties,
    "T": _text("storeTimestamp"),
    "%": _constant(b"%"),
}
