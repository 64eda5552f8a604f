"""The keys of a message: KEYS has the sender's keys, joined by one space each, as RocketMQ stores it.

A key may have spaces itself (RocketMQ's v2 protocol allows it), and nothing in KEYS distinguishes them from
the separators. So the sizes of the keys are stored as well if one has a space:

| property            | value                                                             |
|---------------------|-------------------------------------------------------------------|
| `TROVEMQ_KEY_SIZES` | bytes of each key in KEYS, in their order: decimals, `,` between  |

Indexes have an entry for each word of KEYS (a piece between single spaces, without empty ones), as RocketMQ's
has. A key with spaces is looked up by one of its words; the record says whether it has the whole key. A word
of a key with spaces is found, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

_SPACE = ord(" ")


def key_sizes(keys: Sequence[str]) -> str:
    """TROVEMQ_KEY_SIZES of these keys; "" if KEYS is enough."""
    if " " not in "".join(keys):
        return ""
    return ",".join(str(len(key.encode())) for key in keys)


def keys_with_spaces(keys: bytes, sizes: bytes) -> list[bytes]:
    """The keys with spaces, by KEYS and TROVEMQ_KEY_SIZES; none if these do not fit each other."""
    texts = sizes.split(b",")
    if not all(text.isdigit() and len(text) <= 5 for text in texts):
        return []
    widths = [int(text) + 1 for text in texts]
    ends = [end - 1 for end in accumulate(widths)]
    if ends[-1] != len(keys) or any(keys[end] != _SPACE for end in ends[:-1]):
        return []
    found = [keys[end - width + 1 : end] for width, end in zip(widths, ends, strict=True)]
    return [key for key in found if b" " in key]


def key_word(key: bytes, *, is_beginning: bool = False) -> bytes:
    """The word by which indexes find a key: its longest one. The last word of a key's beginning may be
    incomplete and is not used: b"" if there is no other one."""
    words = key.split(b" ")
    return max(words[:-1] if is_beginning else words, key=len)
