"""The names of topics that no user creates: RocketMQ's fixed names, and the beginnings of generated ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trovemq_proto.records.layout import SCHEDULE_TOPIC

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"

SYSTEM_TOPICS: Final = frozenset(
    {
        "BenchmarkTest",
        "CHECKPOINT_TOPIC",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        SCHEDULE_TOPIC,
    }
)


def is_system_topic(name: str) -> bool:
    """True for topics that no user creates: RocketMQ's fixed names, rmq_sys_…, %RETRY%… and %DLQ%…."""
    return name in SYSTEM_TOPICS or name.startswith((SYSTEM_PREFIX, RETRY_PREFIX, DEAD_LETTER_PREFIX))


def user_topic_count(names: Iterable[str]) -> int:
    """How many of the topics are no system topics."""
    return sum(not is_system_topic(name) for name in names)
