"""Where a message is, in numbers that look like any other and must not be taken for it.

When the code runs they are plain ints; mypy keeps them apart. Arithmetic gives an int: where the result is a
position again, name it, as in `PhysicalOffset(begin + size)`. Decoders and index reads return these types.
NumPy columns of positions stay int64; a value taken out of one is wrapped where it leaves the loop.
"""

from __future__ import annotations

from typing import Final, NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""A byte of the commit log, counted from the log's first byte ever; segments are named by theirs."""

LOG_ORIGIN: Final = PhysicalOffset(0)
"""Where the log's first byte was written; a store that dropped old segments begins further on."""

QueueOffset = NewType("QueueOffset", int)
"""A message's number in its queue, from 0 on; also where a group continues, one past the last."""

QUEUE_ORIGIN: Final = QueueOffset(0)
"""The first message that a queue ever had; retention may have removed it."""
