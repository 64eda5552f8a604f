"""Where and when: numbers that must not be taken for each other, nor for a size or a duration.

When the code runs they are plain ints; mypy keeps them apart. Arithmetic gives an int: where the result is a
position again, name it, as in `PhysicalOffset(begin + size)`. Only a moment plus a duration is a moment.
Decoders and index reads return these types. NumPy columns stay int64; a value taken out of one is wrapped
where it leaves the loop.

They end where another program begins: the SDK's users, protobuf and files have plain numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""A byte of the commit log, counted from the log's first byte ever; segments are named by theirs."""

LOG_ORIGIN: Final = PhysicalOffset(0)
"""Where the log's first byte was written; a store that dropped old segments begins further on."""

QueueOffset = NewType("QueueOffset", int)
"""A message's number in its queue, from 0 on; also where a group continues, one past the last."""

QUEUE_ORIGIN: Final = QueueOffset(0)
"""The first message that a queue ever had; retention may have removed it."""

QueueId = NewType("QueueId", int)
"""A queue's number among those of its topic and broker, from 0 on."""

ANY_QUEUE: Final = QueueId(-1)
"""In a request that names no queue: a send goes to one that the broker chooses, a receive takes from all."""

GROUP_EPOCH_MAX: Final = (1 << 31) - 1
"""The highest epoch of a replica group's leadership: RocketMQ's are positive i32."""

if TYPE_CHECKING:

    class EpochMs(int):
        """A moment, in milliseconds since 1970 (UTC). With a duration added it is a moment again."""

        def __add__(self, duration_ms: int, /) -> EpochMs: ...

else:
    EpochMs = NewType("EpochMs", int)
