"""A search: conditions on one topic's messages, combined by AND and OR, a time range, an order.

A condition compares the bytes of a property (UTF-8) with a value or a prefix: of the unique key (UNIQ_KEY),
one of the keys (KEYS; trovemq_proto.records.keys), the tag (TAGS), or a property that the topic declares as
indexed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeAlias

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from trovemq_proto.records.keys import key_word, keys_with_spaces
from trovemq_proto.records.layout import PROPERTY_KEY_SIZES
from trovemq_store.index.trees.layout import KEY, PROPERTY, TAG, UNIQUE_KEY

TIME_MAX: Final = EpochMs((1 << 63) - 1)
VALUE_SIZE_MAX: Final = 32_767
CONDITIONS_MAX: Final = 64
DEPTH_MAX: Final = 8

_KEY_SIZES: Final = PROPERTY_KEY_SIZES.encode()
KIND_NAMES: Final = {UNIQUE_KEY: "unique id", KEY: "key", TAG: "tag", PROPERTY: "property"}
_PROPERTY_OF: Final = {UNIQUE_KEY: PROPERTY_UNIQ_KEY, KEY: PROPERTY_KEYS, TAG: PROPERTY_TAGS}


@dataclass(frozen=True, slots=True)
class Has:
    """The property has this value, or one that begins with it. `name` is set if `kind` is PROPERTY."""

    kind: int
    value: bytes
    is_prefix: bool = False
    name: str = ""

    @property
    def property_name(self) -> bytes:
        return (self.name if self.kind == PROPERTY else _PROPERTY_OF[self.kind]).encode()

    @property
    def has_spaces(self) -> bool:
        """Whether the key has spaces: the trees have its words only."""
        return self.kind == KEY and b" " in self.value

    def is_met_by_key(self, keys: bytes, sizes: bytes) -> bool:
        """Whether one of the keys with spaces meets the condition; KEYS and TROVEMQ_KEY_SIZES together define
        such keys."""
        return any(map(self.is_met, keys_with_spaces(keys, sizes)))

    def by_word(self) -> Has | None:
        """For a key with spaces: a weaker condition on one of its words, which has entries. None if there is
        none."""
        word = key_word(self.value, is_beginning=self.is_prefix)
        if word:
            return Has(KEY, word)
        last = self.value.rsplit(b" ", 1)[-1]
        return Has(KEY, last, is_prefix=True) if self.is_prefix and last else None

    def accepts(self, properties: dict[bytes, bytes]) -> bool:
        found = properties.get(self.property_name)
        if found is None:
            return False
        if self.kind == KEY:
            if self.has_spaces:
                return self.is_met_by_key(found, properties.get(_KEY_SIZES, b""))
            return any(self.is_met(word) for word in found.split(b" ") if word)
        return self.is_met(found)

    def is_met(self, value: bytes) -> bool:
        return value.startswith(self.value) if self.is_prefix else value == self.value

    def __str__(self) -> str:
        name = f"{KIND_NAMES[self.kind]} {self.name}".rstrip()
        shown = self.value[:80].decode("utf-8", "replace")
        return f"{name} = {shown}{'*' if self.is_prefix else ''}"


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[Condition, ...]

    def accepts(self, properties: dict[bytes, bytes]) -> bool:
        return all(part.accepts(properties) for part in self.parts)


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Condition, ...]

    def accepts(self, properties: dict[bytes, bytes]) -> bool:
        return any(part.accepts(properties) for part in self.parts)


Condition: TypeAlias = Has | AllOf | AnyOf

EVERYTHING: Final = AllOf(())


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """begin, end: store time in epoch ms, both inclusive."""

    topic: str
    where: Condition = EVERYTHING
    begin: EpochMs = EpochMs(0)
    end: EpochMs = TIME_MAX
    newest_first: bool = True

    def check(self) -> None:
        """Raises TroveError REQUEST_ILLEGAL."""
        if not self.topic:
            raise _illegal("the topic is missing", "topic")
        if not 0 <= self.begin <= self.end:
            raise _illegal(f"begin {self.begin} is negative, or after end {self.end}", "begin")
        count = 0
        for condition in each_has(self.where):
            count += 1
            _check_has(condition)
        if count > CONDITIONS_MAX:
            raise _illegal(f"{count} conditions, {CONDITIONS_MAX} are possible", "where")
        _check_parts(self.where, DEPTH_MAX)

    def fingerprint(self) -> str:
        """Identifies a search, so that its cursor is not used with another one."""
        text = repr((self.topic, self.where, self.begin, self.end, self.newest_first))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def has_times(self) -> bool:
        """Whether the search has a limit of time."""
        return self.begin > 0 or self.end < TIME_MAX

    def in_time(self, timestamp: EpochMs) -> bool:
        return self.begin <= timestamp <= self.end

    def properties(self) -> set[str]:
        """Names of the properties in its conditions, without keys and tag."""
        return {condition.name for condition in each_has(self.where) if condition.kind == PROPERTY}


def each_has(condition: Condition) -> Iterator[Has]:
    """Every simple condition in this one."""
    if isinstance(condition, Has):
        yield condition
        return
    for part in condition.parts:
        yield from each_has(part)


def _check_has(condition: Has) -> None:
    what = KIND_NAMES[condition.kind]
    if not condition.value:
        raise _illegal(f"the {what} is empty: no message has an empty one", "where")
    if len(condition.value) > VALUE_SIZE_MAX:
        raise _illegal(f"the {what} has {len(condition.value)} bytes, more than {VALUE_SIZE_MAX}", "where")
    if condition.kind == PROPERTY and not condition.name:
        raise _illegal("the property's name is missing", "where")


def _check_parts(condition: Condition, depth: int) -> None:
    if isinstance(condition, Has):
        return
    if not depth:
        raise _illegal(f"conditions within conditions, more than {DEPTH_MAX} deep", "where")
    if isinstance(condition, AnyOf) and not condition.parts:
        raise _illegal("none of no conditions can be met", "where")
    for part in condition.parts:
        _check_parts(part, depth - 1)


def _illegal(text: str, field: str) -> TroveError:
    return TroveError(errors.REQUEST_ILLEGAL, text, field=field)
