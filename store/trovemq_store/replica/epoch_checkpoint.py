"""RocketMQ's file of the epochs, `epochFileCheckpoint`, which a broker of it in controller mode reads.

Lines of text, each with a line feed:

    line      content
       1      number of epochs
       2      CRC-32 of all bytes of the later lines, without its highest bit; 0: it is not compared
    from 3    EPOCH-START: epoch, physical offset of its first byte; rising

It is a projection of `trovemq/replica.json` (replica_file.py) and written after it. We read it only where
that file is missing: in a store that RocketMQ left. Source: RocketMQ 5.4.0, CheckpointFile and
EpochFileCache.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

from trovemq_store.replica.epochs import Epochs

PATH: Final = "epochFileCheckpoint"
_LINE: Final = re.compile(rb"([0-9]{1,10})-([0-9]{1,19})")
_CRC_MASK: Final = 0x7FFFFFFF
_HEAD_LINES: Final = 2


def encoded(epochs: Epochs) -> bytes:
    """The file's content."""
    lines = b"".join(b"%d-%d\n" % entry for entry in epochs)
    return b"%d\n%d\n%b" % (len(epochs), crc32(lines) & _CRC_MASK, lines)


def decoded(data: bytes) -> Epochs:
    """The epochs of the file. ValueError if it is damaged."""
    lines = data.splitlines()
    found = [_LINE.fullmatch(line) for line in lines[_HEAD_LINES:]]
    if len(lines) < _HEAD_LINES or not lines[0].isdigit() or not lines[1].isdigit() or None in found:
        raise ValueError(f"{PATH} is not a list of epochs")
    count, stated = int(lines[0]), int(lines[1])
    content = b"".join(line + b"\n" for line in lines[_HEAD_LINES:])
    if count != len(found) or stated not in (0, crc32(content) & _CRC_MASK):
        raise ValueError(f"{PATH} does not have the lines that it states")
    return Epochs.of([(int(match[1]), int(match[2])) for match in found if match is not None])
