"""The property block of a record, and the properties that a user may set.

| part  | bytes                                                         |
|-------|---------------------------------------------------------------|
| name  | UTF-8, ended by 0x01                                          |
| value | UTF-8, ended by 0x02 (old clients left the last 0x02 out)     |

Order has no meaning. Our encoder writes UNIQ_KEY, KEYS, TAGS, then the user's properties in the order
given, then (on request) the reserved CRC property; WAIT is never written.
Source: RocketMQ 5.4.0, MessageDecoder.string2messageProperties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.records.internal_properties import Writer, is_reserved
from trovemq_proto.records.layout import (
    PROPERTIES_SIZE_MAX,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)

UNIQUE_KEY_SIZE_MAX: Final = 255


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property block of these names and values, as given (nothing checked but the total size).

    Raises TroveError PROPERTIES_SIZE_EXCEEDED, PROPERTY_ILLEGAL (text that is not valid Unicode).
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    block = _utf8(text, errors.PROPERTY_ILLEGAL, "the properties")
    check_block_size(len(block))
    return block


def parse_properties(block: bytes) -> dict[str, str]:
    """Names and values of a property block, by RocketMQ's rules.

    A piece without 0x01, with an empty name or an empty value is left out; the value begins after the
    first 0x01; of two pieces with one name the later wins; malformed UTF-8 becomes U+FFFD.
    """
    found = {}
    for piece in block.decode("utf-8", "replace").split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            found[name] = value
    return found


def check_block_size(size: int) -> None:
    """Raises TroveError PROPERTIES_SIZE_EXCEEDED for a property block of more bytes than a record takes."""
    if size > PROPERTIES_SIZE_MAX:
        raise TroveError(
            errors.PROPERTIES_SIZE_EXCEEDED,
            f"the properties take {size} bytes, more than {PROPERTIES_SIZE_MAX}",
            size=size,
        )


def check_key(key: str) -> str:
    """The key itself. Raises TroveError KEY_ILLEGAL."""
    _utf8(key, errors.KEY_ILLEGAL, "keys: a key")
    if not key or " " in key or "\x01" in key or "\x02" in key:
        raise TroveError(
            errors.KEY_ILLEGAL, f"the key {key!r} is empty or has a space, 0x01 or 0x02", key=key
        )
    return key


def check_tag(tag: str) -> str:
    """The tag itself. Raises TroveError TAG_ILLEGAL."""
    _utf8(tag, errors.TAG_ILLEGAL, "tag")
    if not tag.strip() or "|" in tag or "\x01" in tag or "\x02" in tag:
        raise TroveError(errors.TAG_ILLEGAL, f"the tag {tag!r} is blank or has a |, 0x01 or 0x02", tag=tag)
    return tag


def check_unique_key(unique_key: str) -> str:
    """The unique key itself. Raises TroveError UNIQUE_KEY_ILLEGAL."""
    size = len(_utf8(unique_key, errors.UNIQUE_KEY_ILLEGAL, "message_id"))
    if not 1 <= size <= UNIQUE_KEY_SIZE_MAX or any(c in unique_key for c in " \x01\x02"):
        raise TroveError(
            errors.UNIQUE_KEY_ILLEGAL,
            f"the message id {unique_key[:300]!r} is empty, longer than {UNIQUE_KEY_SIZE_MAX} bytes"
            " or has a space, 0x01 or 0x02",
        )
    return unique_key


def check_property(name: str, value: str, writer: Writer = Writer.USER) -> None:
    """Raises TroveError PROPERTY_ILLEGAL for a property that this writer may not write."""
    _utf8(name, errors.PROPERTY_ILLEGAL, "properties: the name")
    _utf8(value, errors.PROPERTY_ILLEGAL, f"properties: the value of {name!r}")
    if is_reserved(name, writer):
        raise TroveError(errors.PROPERTY_ILLEGAL, f"the property name {name!r} is reserved", name=name)
    text = name + value
    if not name or not value or "\x01" in text or "\x02" in text:
        raise TroveError(
            errors.PROPERTY_ILLEGAL, f"the property {name!r} is empty or has 0x01 or 0x02", name=name
        )


def message_properties(
    unique_key: str | None,
    keys: str | Sequence[str] | None,
    tag: str | None,
    properties: Mapping[str, str] | None,
    writer: Writer = Writer.USER,
) -> dict[str, str]:
    """The properties of one message in the encoder's order, each checked. writer: who writes `properties`."""
    found = {}
    if properties is not None and not isinstance(properties, Mapping):
        raise TroveError(errors.PROPERTY_ILLEGAL, f"properties is a mapping of texts, {not_of(properties)}")
    if unique_key is not None:
        found[PROPERTY_UNIQ_KEY] = check_unique_key(unique_key)
    if keys is not None and not isinstance(keys, str | Iterable):
        raise TroveError(errors.KEY_ILLEGAL, f"keys is one text or several, {not_of(keys)}")
    if keys:
        found[PROPERTY_KEYS] = " ".join(map(check_key, [keys] if isinstance(keys, str) else keys))
    elif keys is not None and isinstance(keys, str):
        check_key(keys)
    if tag is not None:
        found[PROPERTY_TAGS] = check_tag(tag)
    for name, value in (properties or {}).items():
        check_property(name, value, writer)
        found[name] = value
    return found


def not_of(value: object) -> str:
    """The end of an error's text, for a value of a wrong type."""
    return f"not {str(value)[:80]!r} of type {type(value).__name__}"


def _utf8(text: str, spec: ErrorSpec, what: str) -> bytes:
    """The text's bytes; `what`: the argument's name."""
    if not isinstance(text, str):
        raise TroveError(spec, f"{what} is text, {not_of(text)}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TroveError(spec, f"{what} is not valid Unicode: {error.reason}") from error
