"""One broker's figures, gathered in one place: AdminService and /metrics both read them from here."""

from __future__ import annotations

from collections.abc import Callable

from broker.consume.long_poll import LongPolls
from broker.message_store import MessageStore
from broker.produce.group_commit import GroupCommit
from broker.server.query_service import QueryService
from broker.server.reply_stream import OpenStreams
from broker.server.traffic import Traffic


class BrokerStatistics:
    """Reads plain numbers when it is asked; keeps none."""

    def __init__(
        self,
        store: MessageStore,
        group_commit: GroupCommit,
        long_polls: LongPolls,
        queries: QueryService,
        streams: OpenStreams,
        traffic: Traffic,
        clock_ms: Callable[[], int],
    ) -> None:
        self.store = store
        self.group_commit = group_commit
        self.long_polls = long_polls
        self.queries = queries
        self.streams = streams
        self.traffic = traffic
        self.clock_ms = clock_ms

    @property
    def index_create_failures(self) -> int:
        """How often no file could be had for the key index."""
        return int(getattr(self.store.key_index, "create_failures", 0))

    def counters(self) -> dict[str, int]:
        """Whole numbers by name; what each means stands in docs/statistics.md."""
        store, traffic = self.store, self.traffic
        return {
            "messages_in": traffic.messages_in.total(),
            "messages_out": traffic.messages_out.total(),
            "bytes_in": traffic.bytes_in.total(),
            "bytes_out": traffic.bytes_out.total(),
            "appends_refused": traffic.refusals.total(),
            "one_way_refused": traffic.one_way_refusals.total(),
            "log_min_offset": store.min_offset,
            "log_end_offset": store.end_offset,
            "log_flushed_offset": store.flushed_offset,
            "log_visible_offset": store.visible_offset,
            "log_segments": store.segment_count,
            "flushes": self.group_commit.flush_count,
            "flush_timeouts": self.group_commit.timeout_count,
            "flush_behind_bytes": self.group_commit.unsynced_bytes,
            "dispatch_behind_bytes": store.undispatched_bytes,
            "topics": len(store.topics),
            "consumer_groups": len(store.offsets.groups()),
            "appends_waiting": self.group_commit.waiting,
            "long_polls": len(self.long_polls),
            "queries_running": self.queries.running,
            "streams": len(self.streams),
            "lagging_projections": len(store.lagging),
            "projection_failures": store.projection_failures,
            "segment_create_failures": store.segment_create_failures,
            "index_create_failures": self.index_create_failures,
        }
