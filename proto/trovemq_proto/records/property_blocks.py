"""The property blocks of many messages: as properties.message_properties, but checked column by column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from trovemq_proto.records.internal_properties import Writer
from trovemq_proto.records.layout import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from trovemq_proto.records.priorities import PROPERTY_PRIORITY, check_priority_text
from trovemq_proto.records.properties import (
    UNIQUE_KEY_SIZE_MAX,
    check_block_size,
    check_key,
    check_property,
    check_tag,
    check_unique_key,
    encode_properties,
)

Keys = str | Sequence[str] | None
Tags = Sequence[str | None] | str | None
Properties = Sequence[Mapping[str, str] | None] | Mapping[str, str] | None

TAGS_BEGIN: Final = f"{PROPERTY_TAGS}\x01".encode()
VALUE_END: Final = b"\x02"


def property_blocks(
    unique_keys: Sequence[str],
    keys: Sequence[Keys] | None,
    tags: Tags,
    properties: Properties,
    *,
    writer: Writer,
    end: bytes,
) -> list[bytes]:
    """One block per message, each followed by `end`. Raises TroveError KEY_ILLEGAL, TAG_ILLEGAL,
    UNIQUE_KEY_ILLEGAL, PROPERTY_ILLEGAL, PROPERTIES_SIZE_EXCEEDED."""
    count = len(unique_keys)
    if isinstance(tags, str) or tags is None:
        tags = [tags] * count
    if isinstance(properties, Mapping) or properties is None:
        own = [own_block(properties, writer)] * count
    else:
        own = [own_block(row, writer) for row in properties]
    _check_each(unique_keys, " \x01\x02", check_unique_key)
    heads = [f"{PROPERTY_UNIQ_KEY}\x01{unique_key}\x02".encode() for unique_key in unique_keys]
    key_blocks = [b""] * count if keys is None else _key_blocks(keys)
    tag_blocks = {tag: tag_block(tag) for tag in set(tags)}
    parts = zip(heads, key_blocks, map(tag_blocks.__getitem__, tags), own, strict=True)
    blocks = [b"".join((*row, end)) for row in parts]
    check_block_size(max(map(len, blocks), default=0))
    return blocks


def _key_blocks(keys: Sequence[Keys]) -> list[bytes]:
    lists = [(own,) if isinstance(own, str) else tuple(own or ()) for own in keys]
    _check_each([key for own in lists for key in own], " \x01\x02", check_key)
    return [f"{PROPERTY_KEYS}\x01{' '.join(own)}\x02".encode() if own else b"" for own in lists]


def tag_block(tag: str | None) -> bytes:
    """TAGS of one message, checked."""
    return b"" if tag is None else TAGS_BEGIN + check_tag(tag).encode() + VALUE_END


def own_block(properties: Mapping[str, str] | None, writer: Writer) -> bytes:
    """A message's own properties, checked."""
    for name, value in (properties or {}).items():
        if name == PROPERTY_PRIORITY:
            check_priority_text(value)
        else:
            check_property(name, value, writer)
    return encode_properties(properties) if properties else b""


def _check_each(texts: Sequence[str], forbidden: str, check: Callable[[str], object]) -> None:
    """Calls check(text) for each text, unless the joined texts show that no check can fail."""
    joined = "".join(texts)
    suspicious = any(character in joined for character in forbidden) or not joined.isascii()
    if suspicious or not all(texts) or max(map(len, texts), default=0) > UNIQUE_KEY_SIZE_MAX:
        for text in texts:
            check(text)
