"""The settings of the core, which its parts declare, and those of its reads and its clients.
`trovemq_broker.daemon.settings` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from trovemq_broker.atomic.limits import AtomicLimits
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.produce.append import AppendSettings
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_daemon.settings import DAY_MS, GIB, setting
from trovemq_store.settings import StoreSettings

_STORE: Final = StoreSettings()


@dataclass(frozen=True, kw_only=True)
class ReadSettings:
    """The settings of fetching and queries."""

    pull_bytes_max: Annotated[int, setting("bytes", 4_096, GIB)] = 4_194_304
    """Most bytes of records in one reply; a single larger record is still sent."""
    fetch_frames_in_flight_max: Annotated[int, setting("frames", 1, 65_536)] = 256
    """Requests of one Fetch stream that may await their reply."""
    long_poll_wait_max_ms: Annotated[int, setting("ms", 0, 600_000)] = 30_000
    """Longest time that a pull may wait for messages."""
    long_polls_max: Annotated[int, setting("polls", 1, 1_000_000)] = 10_000
    """Pulls that may wait at once."""
    query_messages_max: Annotated[int, setting("messages", 1, 10_000, rocketmq="maxMsgsNumBatch")] = (
        _STORE.query_messages_max
    )
    """Messages of one query's page."""
    query_page_bytes_max: Annotated[int, setting("bytes", 4_096, GIB)] = _STORE.query_page_bytes_max
    """Record bytes that one query loads for a page."""
    queries_max: Annotated[int, setting("queries", 1, 10_000, restart=False)] = 64
    """Queries that may run at once."""


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """The settings of the registry of clients."""

    clients_max: Annotated[int, setting("clients", 1, 1_000_000)] = 10_000
    """RocketMQ clients that may be known at once."""
    client_expiry_ms: Annotated[int, setting("ms", 1_000, DAY_MS, rocketmq="channelExpiredTimeout")] = 120_000
    """A RocketMQ client without a stream is forgotten after this time without a heartbeat."""


@dataclass(frozen=True, kw_only=True)
class CoreSettings(
    RegistrySettings, ConsumerSettings, ReadSettings, AtomicLimits, AppendSettings, FlushSettings
):
    """The settings of all parts of the core."""
