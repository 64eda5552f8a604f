"""The client for threads."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from functools import cached_property
from typing import Self

from trovemq import client as aio
from trovemq import received
from trovemq.handlers import Handlers
from trovemq.options import ClientOptions
from trovemq.replies import ReplyCounts
from trovemq.starts import Start
from trovemq.sync import _loop_thread
from trovemq.sync._calls import SyncWrapper, iterates, makes, waits
from trovemq.sync.admin import Admin
from trovemq.sync.producer import AtomicTransaction, Producer
from trovemq.sync.received import ReceivedMessage
from trovemq.sync.running import Running
from trovemq.sync.subscription import Handler, Subscription
from trovemq_proto.tls import TlsOptions


def connect(
    server: str | Sequence[str],
    *,
    wait_ms: int = 0,
    tls: bool | TlsOptions | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    options: ClientOptions | None = None,
) -> Client:
    """Connects to a cluster: `with connect(…) as client:`, or a client that is closed when the process ends.

    After a fork, connect again; that does not work with `grpcio`, whose threads do not survive a fork.

    Args:
        server: HOST:PORT of a nameserver or a broker; several with commas or as a sequence; or a URL,
            `trovemq://ACCESS_KEY:SECRET_KEY@ns1:9876?tls=true`.
        wait_ms: How long to retry while no server answers; each is tried at least once.
        tls: True, or TlsOptions; False for a plain connection; None: by options, else by the environment.
        access_key: The user, for servers with authentication; None: by options, else by the environment.
        secret_key: The user's secret; it is never transmitted.
        options: Sizes, times, retries, and the transport.

    Raises:
        TroveError: BROKER_UNREACHABLE, REQUEST_TIMEOUT or TLS_FAILED; REQUEST_ILLEGAL for an illegal
            address; TLS_OPTION_ILLEGAL for files that cannot be used.
    """
    thread = _loop_thread.current()

    async def connect() -> aio.Client:
        return await aio.connect(
            server, wait_ms=wait_ms, tls=tls, access_key=access_key, secret_key=secret_key, options=options
        )

    inner = thread.run(connect())
    thread.add(inner)
    return Client(inner, thread)


class Client(SyncWrapper[aio.Client]):
    """A connected client, created by `connect`. Any thread may call it, also several at a time.

    Attributes:
        admin: Topics, group offsets, statistics.
    """

    def close(self) -> None:
        """Flushes all producers, for up to five seconds, closes subscriptions, and disconnects. The log has
        the number of messages without an acknowledgement."""
        self._thread.close(self._inner)

    # --- sending --------------------------------------------------------------------------------------
    send = waits(aio.Client.send)
    producer = makes(aio.Client.producer, Producer)
    request = waits(aio.Client.request)
    reply = waits(aio.Client.reply)
    transaction = makes(aio.Client.transaction, AtomicTransaction)
    recall = waits(aio.Client.recall)

    # --- receiving ------------------------------------------------------------------------------------
    subscribe = makes(aio.Client.subscribe, Subscription)
    pull = iterates(aio.Client.pull)
    pull_batches = iterates(aio.Client.pull_batches)

    # --- finding --------------------------------------------------------------------------------------
    get = waits(aio.Client.get)
    get_at = waits(aio.Client.get_at)
    track = waits(aio.Client.track)
    query = waits(aio.Client.query)
    query_all = iterates(aio.Client.query_all)
    search = waits(aio.Client.search)
    search_all = iterates(aio.Client.search_all)
    search_offset = waits(aio.Client.search_offset)
    queue_offsets = waits(aio.Client.queue_offsets)
    broker_time = waits(aio.Client.broker_time)

    @property
    def reply_counts(self) -> ReplyCounts:
        """The requests that wait, and the replies that were dropped."""
        return self._inner.reply_counts

    @cached_property
    def admin(self) -> Admin:
        """Topics, groups, stores, statistics."""
        return Admin(self._inner.admin, self._thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        handlers: Handlers,
        *,
        drain_seconds: float = 30.0,
        signals: Sequence[signal.Signals] | None = None,
    ) -> Running:
        """Runs handlers, each call in a thread: `with client.run(handlers) as running: running.wait()`.

        Without `signals`, SIGTERM and SIGINT end `wait` in the main thread, and nothing is done about signals
        while the program does not wait. The functions get messages of `trovemq.sync`. A thread cannot be
        cancelled: after `drain_seconds` its message is returned although it still runs.

        Raises TroveError REQUEST_ILLEGAL (no handlers); when entered, TOPIC_NOT_FOUND, BROKER_UNREACHABLE, …
        """
        return Running(self._inner, self._thread, handlers, drain_seconds, signals)

    def consume(
        self,
        topic: str,
        group: str,
        handler: Handler,
        *,
        concurrency: int = 16,
        filter: str = "*",  # noqa: A002  as `subscribe`
        tags: Sequence[str] | None = None,
        sql: str | None = None,
        invisible_ms: int | None = None,
        prefetch: int | None = None,
        prefetch_bytes_max: int = 32 << 20,
        broadcast: bool = False,
        start: Start | None = None,
        wait_for_topic: bool = False,
    ) -> None:
        """Calls `handler` in one of `concurrency` threads for each message, until Ctrl-C, or until the client
        is closed by another thread. Running handlers end first. The other arguments are those of `subscribe`.
        Raises TroveError TOPIC_NOT_FOUND, BROKER_UNREACHABLE, a broker's refusal, also later."""

        async def directly(message: received.ReceivedMessage) -> None:
            await asyncio.to_thread(handler, ReceivedMessage.of(message, self._thread))

        subscription = self.subscribe(
            topic,
            group,
            filter=filter,
            tags=tags,
            sql=sql,
            invisible_ms=invisible_ms,
            prefetch=prefetch,
            prefetch_bytes_max=prefetch_bytes_max,
            handler=directly,
            broadcast=broadcast,
            start=start,
            wait_for_topic=wait_for_topic,
        )
        subscription.works_on(concurrency)
        with subscription:
            subscription.consume(handler, concurrency)
