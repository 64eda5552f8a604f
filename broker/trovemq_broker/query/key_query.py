"""A query by key, and the test whether a record matches it.

The key index has 31 bits of a hash of `topic#key`, so a record must be read to see whether it has the key. A
record answers when its TOPIC is the topic, its STORETIMESTAMP lies in [begin, end], and
- KEY: the key is one of KEYS (words, or keys with spaces: trovemq_proto.records.keys), or UNIQ_KEY;
- UNIQUE: the key is UNIQ_KEY;
- TAG: the key is TAGS.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    index_hash,
    parse_properties,
)
from trovemq_proto.records.fields import RecordFields, store_timestamp
from trovemq_proto.records.hashes import index_hashes
from trovemq_proto.records.keys import key_word, keys_with_spaces
from trovemq_proto.records.layout import PROPERTY_KEY_SIZES

TIME_MAX: Final = EpochMs((1 << 63) - 1)
KEY_SIZE_MAX: Final = 32_767


class KeyType(Enum):
    KEY = "key"
    UNIQUE = "unique"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """topic "" (UNIQUE only) means every topic; begin, end: epoch ms, both inclusive."""

    topic: str
    key: str
    type: KeyType = KeyType.KEY
    begin: EpochMs = EpochMs(0)
    end: EpochMs = TIME_MAX

    def check(self) -> None:
        """Raises TroveError REQUEST_ILLEGAL."""
        if not self.topic and self.type is not KeyType.UNIQUE:
            raise TroveError(errors.REQUEST_ILLEGAL, "the topic is missing", field="topic")
        if len(self.key) > KEY_SIZE_MAX:
            raise TroveError(
                errors.REQUEST_ILLEGAL,
                f"the key has {len(self.key)} characters, more than {KEY_SIZE_MAX}",
                field="key",
            )
        if self.begin > self.end:
            raise TroveError(
                errors.REQUEST_ILLEGAL, f"begin {self.begin} is after end {self.end}", field="begin"
            )

    def fingerprint(self) -> str:
        """Identifies a query, so that a cursor is not used with another one."""
        parts = "\0".join((self.topic, self.key, self.type.value, str(self.begin), str(self.end)))
        return blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def hashes_in(self, topic: str) -> set[int]:
        """The hashes under which the key index has the records of that topic that can match. A key with
        spaces has an entry for each word if it is in KEYS, and one entry if it is the UNIQ_KEY."""
        if self.type is KeyType.TAG:
            return {index_hash(topic, f"T#{self.key}")}
        found = {index_hash(topic, self.key)}
        if self.type is KeyType.KEY and " " in self.key:
            found.add(index_hash(topic, key_word(self.key.encode("utf-8", "replace")).decode()))
        return found

    def hashes_in_all(self, topics: Iterable[str]) -> list[int]:
        """The hash of a unique key in each of the topics."""
        assert self.type is KeyType.UNIQUE, "only unique keys are looked up in all topics"
        assert not self.topic, "a query that names its topic has hashes_in()"
        return index_hashes(topics, self.key)

    @property
    def has_times(self) -> bool:
        """Whether the query has a limit of time."""
        return self.begin > 0 or self.end < TIME_MAX

    def in_time(self, timestamp: EpochMs) -> bool:
        return self.begin <= timestamp <= self.end

    def accepts(self, record: memoryview, fields: RecordFields) -> bool:
        """Whether the record answers the query."""
        if not self.in_time(store_timestamp(record, 0, fields.sys_flag)):
            return False
        topic = record[fields.topic_position : fields.topic_position + fields.topic_size]
        if self.topic and topic != self.topic.encode("utf-8", "replace"):
            return False
        block = bytes(record[fields.property_position :])
        return self._may_have_key(block) and self._has_key(parse_properties(block))

    def _may_have_key(self, block: bytes) -> bool:
        """Whether the block has the key's bytes at all: to parse a large block costs a hundred times more.
        U+FFFD in the key may stand for any malformed bytes."""
        return "\ufffd" in self.key or self.key.encode("utf-8", "replace") in block

    def _has_key(self, properties: dict[str, str]) -> bool:
        if not self.key:
            return False  # no message has an empty key
        if self.type is KeyType.TAG:
            return properties.get(PROPERTY_TAGS) == self.key
        if properties.get(PROPERTY_UNIQ_KEY) == self.key:
            return True
        if self.type is not KeyType.KEY:
            return False
        keys, sizes = properties.get(PROPERTY_KEYS, ""), properties.get(PROPERTY_KEY_SIZES, "")
        if sizes and " " in self.key:
            return self.key.encode("utf-8", "replace") in keys_with_spaces(keys.encode(), sizes.encode())
        return self.key in keys.split(" ")
