"""The keys of a message: KEYS is what the sender gave, joined by one space each, as RocketMQ stores it.

A key may have spaces itself (RocketMQ's v2 protocol allows it), and nothing tells them from those in between.
Indexes have an entry for each word (a piece between single spaces, without empty ones). So a key with spaces
is looked up by one of its words, and a message has it where it stands in KEYS between spaces or ends.
"""

from __future__ import annotations


def has_key(keys: str, key: str) -> bool:
    """Whether the key, as its sender gave it, is one of KEYS."""
    return bool(key) and f" {key} " in f" {keys} "


def has_key_bytes(keys: bytes, key: bytes, *, is_beginning: bool) -> bool:
    """The same of UTF-8; is_beginning: of a key that begins so."""
    if is_beginning:
        return b" %s" % key in b" %s" % keys
    return b" %s " % key in b" %s " % keys


def key_word(key: str) -> str:
    """The word by which indexes find the key: its longest one."""
    return max(key.split(" "), key=len)


def whole_word(key: bytes, *, is_beginning: bool) -> bytes:
    """The same of UTF-8; where only the key's beginning is known, its last word is not: b"" where no other
    one is there."""
    words = key.split(b" ")
    return max(words[:-1] if is_beginning else words, key=len)
