"""Reads from a follower: the services of a broker that change nothing, on its present store.

The store is closed and opened again when the log is cut or replaced. So a handler is no method of a
service: it is found when a call begins, and the calls that run then end with SERVICE_NOT_AVAILABLE before the
store is closed. Each reply has the lag, and a request may say how much it bears.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final

from trovemq_broker.admin.shared_topics import SharedTopics
from trovemq_broker.produce.replica_acks import Grown
from trovemq_broker.replication.read_lag import check_lag
from trovemq_broker.server.core.read_core import FollowerCore, closed
from trovemq_broker.server.native.message_service import MessageReads
from trovemq_broker.server.native.query_service import QueryService
from trovemq_broker.server.native.search_service import SearchService
from trovemq_broker.server.native.shared_changes import SharedChanges
from trovemq_broker.server.native.store_service import StoreService
from trovemq_broker.server.native.topic_reads import TopicReads
from trovemq_broker.server.native.track_service import TrackReads
from trovemq_broker.server.wire import (
    admin_messages,
    query_messages,
    search_messages,
    send_messages,
    store_messages,
    track_messages,
)
from trovemq_broker.server.wire.methods import Method, Service
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.replica_reads import add_lag, max_lag_of
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.calls import Call, OnCalls
from trovemq_daemon.grpc_services import python_name
from trovemq_proto.errors import TroveError

READS: Final[Mapping[str, tuple[str, ...]]] = {
    send_messages.SERVICE.full_name: ("Fetch", "Pull"),
    query_messages.SERVICE.full_name: ("GetMessage", "QueryByKey", "SearchOffset", "QueueOffsets"),
    search_messages.SERVICE.full_name: ("Search",),
    track_messages.SERVICE.full_name: ("Biography",),
    admin_messages.SERVICE.full_name: ("DescribeTopic", "ListTopics"),
    store_messages.SERVICE.full_name: ("Scrub",),
}
"""The RPCs that a follower serves, by service."""
PATHS: Final = frozenset(f"/{service}/{name}" for service, names in READS.items() for name in names)
STREAMS_END_S: Final = 1.0


class _OpenReads:
    """The services of one open store. `root`: its directory."""

    def __init__(self, core: FollowerCore, root: Path) -> None:
        self.core: Final = core
        self.messages: Final = MessageReads(core)
        store, settings = core.store, core.settings
        queries = QueryService(store, settings.queries_max, core.traffic, core.turns)
        topics = SharedTopics(SharedChanges().config, core.broker, store.topics, tuple)
        self.by_name: Final[dict[str, Any]] = {
            send_messages.SERVICE.full_name: self.messages,
            query_messages.SERVICE.full_name: queries,
            search_messages.SERVICE.full_name: SearchService(
                store, queries.one_more, core.traffic, core.turns
            ),
            track_messages.SERVICE.full_name: TrackReads(core, queries.one_more),
            admin_messages.SERVICE.full_name: TopicReads(core, topics, lambda _topic: None),
            store_messages.SERVICE.full_name: StoreService(store, root, asyncio.Lock(), core.clock_ms),
        }


class ReplicaReads:
    """`refusal`: of a call while no store is open: NOT_LEADER."""

    def __init__(self, refusal: Callable[[], TroveError]) -> None:
        self._refusal = refusal
        self._open: _OpenReads | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        """Of the calls that run."""
        self._ended: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    # --- the store --------------------------------------------------------------------------------------
    @property
    def core(self) -> FollowerCore | None:
        """Of the store that is read; None while none is."""
        return None if self._open is None else self._open.core

    def open(self, core: FollowerCore, root: Path) -> None:
        """The calls that begin from now on read this store, in that directory."""
        self._open = _OpenReads(core, root)

    async def close(self) -> None:
        """No call reads the store when it returns, and none begins to."""
        open_, self._open = self._open, None
        if open_ is None:
            return
        open_.core.close()
        await open_.messages.streams.end_all(STREAMS_END_S)
        for task in self._tasks:
            self._ended.add(task)
            task.cancel()
        await self._idle.wait()

    def grown(self, queues: Grown) -> None:
        """These queues have new messages."""
        if self._open is not None:
            self._open.core.long_polls.wake(queues)

    # --- the calls --------------------------------------------------------------------------------------
    def handlers(self, service: Service) -> dict[str, Any]:
        """The coroutines and generators of the service's reads, by their names in Python."""
        return {
            python_name(method.name): self._handler(method)
            for method in service.methods
            if method.name in READS.get(service.full_name, ()) and method.name != "Pull"
        }

    def on_calls(self, service: Service) -> dict[str, OnCalls]:
        """The functions that take calls which arrived together, by RPC."""
        return {"Pull": self._pulls} if service is send_messages.SERVICE else {}

    def _handler(self, method: Method) -> Any:
        service, name = method.containing_service.full_name, python_name(method.name)
        if method.client_streaming:
            return self._stream(service, name)
        return self._generator(service, name) if method.server_streaming else self._coroutine(service, name)

    def _coroutine(self, service: str, name: str) -> Any:
        async def read(request: Request, context: Context) -> Reply:
            with self._one_call() as open_:
                check_lag(open_.core.lag(), max_lag_of(request))
                reply = await getattr(open_.by_name[service], name)(request, context)
                add_lag(reply, open_.core.lag())
                return reply

        return read

    def _generator(self, service: str, name: str) -> Any:
        async def read(request: Request, context: Context) -> AsyncGenerator[Reply, None]:
            with self._one_call() as open_:
                check_lag(open_.core.lag(), max_lag_of(request))
                replies: AsyncGenerator[Reply, None] = getattr(open_.by_name[service], name)(request, context)
                async with aclosing(replies):
                    async for reply in replies:
                        add_lag(reply, open_.core.lag())
                        yield reply

        return read

    def _stream(self, service: str, name: str) -> Any:
        """Its frames have the lag themselves."""

        async def read(requests: AsyncIterator[Request], context: Context) -> None:
            with self._one_call() as open_:
                await getattr(open_.by_name[service], name)(requests, context)

        return read

    def _pulls(self, calls: Sequence[Call]) -> None:
        open_ = self._open
        if open_ is not None:
            open_.messages.on_pulls(calls)
            return
        for call in calls:
            call.answer(self._refusal())

    @contextmanager
    def _one_call(self) -> Iterator[_OpenReads]:
        """A call, which has a separate task. TroveError SERVICE_NOT_AVAILABLE: the store was closed
        meanwhile."""
        if self._open is None:
            raise self._refusal()
        task = asyncio.current_task()
        assert task is not None, "each call has a task"
        assert task not in self._tasks, "and each task one call"
        self._tasks.add(task)
        self._idle.clear()
        try:
            yield self._open
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            task.uncancel()
            raise closed() from None
        finally:
            self._ended.discard(task)
            self._tasks.discard(task)
            if not self._tasks:
                self._idle.set()
