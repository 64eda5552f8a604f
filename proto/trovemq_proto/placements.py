"""The limit of a topic's placement: the brokers on which its queues lie."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

NAMES_SIZE_MAX: Final = 60_000
"""Characters of the brokers' names together. An entry of the cluster's configuration has 64 KiB, and the rest
is for the topic's name and settings."""


def check_placement(topic: str, brokers: Collection[str]) -> None:
    """Raises TroveError LIMIT_EXCEEDED if the names of the topic's brokers are too long together."""
    size = sum(map(len, brokers))
    if size > NAMES_SIZE_MAX:
        raise TroveError(
            errors.LIMIT_EXCEEDED,
            f"topic {topic} would lie on {len(brokers)} brokers whose names have {size:,} characters, more "
            f"than {NAMES_SIZE_MAX:,}: have it lie on fewer (--brokers A,B), or give brokers shorter names",
            topic=topic,
        )
