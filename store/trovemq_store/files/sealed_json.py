"""The CRC that our own JSON files (trovemq/*.json) have as their last member.

    {
      …,
      "crc32": "0123abcd"     CRC-32 of all bytes before this member's comma, in hex
    }

One changed digit in such a file could hide messages, or bring deleted ones back, and the file would still be
valid JSON. A file without the member is accepted: a version before the CRC wrote it, or a person.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

_SEAL: Final = re.compile(rb',\s*"crc32":\s*"([0-9a-f]{8})"\s*\}\s*\Z')


def seal(document: bytes) -> bytes:
    """The JSON object (which has members) with the CRC as its last member."""
    text = document.rstrip()
    assert text.endswith(b"}"), "an object"
    text = text[:-1].rstrip()
    assert not text.endswith(b"{"), "it has members"
    return b'%b,\n  "crc32": "%08x"\n}\n' % (text, crc32(text))


def check_seal(data: bytes) -> None:
    """ValueError if the file does not have the CRC that it states."""
    found = _SEAL.search(data)
    if found is None:
        if b'"crc32"' in data:
            raise ValueError("its CRC is damaged")
    elif int(found[1], 16) != crc32(data[: found.start()]):
        raise ValueError("it does not have the CRC that it states")
