"""The client: one connection to a cluster, through a nameserver or to one broker."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trovemq._common.arguments import (
    check_amount,
    check_callable,
    check_number,
    check_numbers,
    check_optional_text,
    check_text,
    check_texts,
    check_type,
    recordable_topic,
)
from trovemq._net.connections import ConnectionPool
from trovemq._net.servers import parse_server
from trovemq._run.requesting import Requesting
from trovemq.options import ClientOptions
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.memory import keep_freed_memory
from trovemq_proto.tls import TlsOptions

if TYPE_CHECKING:  # imported when they are first needed
    from trovemq.admin import Admin
    from trovemq.atomic import AtomicTransaction
    from trovemq.fetched import Buffer, FetchedBatch
    from trovemq.handlers import Handlers
    from trovemq.producer import Producer
    from trovemq.receipts import SendReceipt
    from trovemq.received import Handler
    from trovemq.running import Running
    from trovemq.send_arguments import Keys
    from trovemq.starts import Start
    from trovemq.subscription import Subscription
    from trovemq.transaction import Checker
    from trovemq_proto.records import Message

_log = logging.getLogger(__name__)


def connect(
    server: str | Sequence[str],
    *,
    wait_ms: int = 0,
    tls: bool | TlsOptions | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    options: ClientOptions | None = None,
) -> Connecting:
    """Connects to a cluster: `client = await connect(…)`, or `async with connect(…) as client:`.

    Only the given servers, and the brokers in their routes, are ever dialled. The routes are followed in
    the background, from all given servers together.

    Args:
        server: HOST:PORT of a nameserver or a broker; several nameservers with commas or as a sequence. Or a
            URL, `trovemq://ACCESS_KEY:SECRET_KEY@ns1:9876,ns2:9876?tls=true&call_timeout_ms=2000`: its times
            and sizes win over those of `options`; its TLS and keys count only if no argument or option names
            any.
        wait_ms: How long to retry while no server answers; each is tried at least once.
        tls: True, or TlsOptions with the files; False for a plain connection. None: as the options say,
            else as the environment does (TROVEMQ_TLS, TROVEMQ_TLS_CA, …).
        access_key: The user, for servers with authentication; None: as the options say, else as the
            environment does (TROVEMQ_ACCESS_KEY and TROVEMQ_SECRET_KEY, or TROVEMQ_CREDENTIALS, which names a
            file of both).
        secret_key: The user's secret; it is never transmitted.
        options: Sizes, times, retries, and the transport.

    Returns:
        An object to await or to enter; nothing is dialled before.

    Raises:
        TroveError: BROKER_UNREACHABLE, REQUEST_TIMEOUT or TLS_FAILED (when awaited); REQUEST_ILLEGAL for an
            illegal address; TLS_OPTION_ILLEGAL for files that cannot be used. Cancelling closes open
            connections.
    """
    if options is not None:
        check_type("options", options, ClientOptions)
    named = parse_server(server)
    options = named.options_over(options)
    check_number("max_lag_ms", options.max_lag_ms)
    check_amount("max_lag_ms", options.max_lag_ms)
    if tls is not None:
        options = replace(options, tls=tls)
    if access_key is not None or secret_key is not None:
        options = replace(options, access_key=access_key, secret_key=secret_key)
    options.credentials()
    return Connecting(named.addresses, wait_ms, options)


class Connecting:
    """A client that is not connected yet; see `connect`."""

    def __init__(self, servers: Sequence[str], wait_ms: int, options: ClientOptions) -> None:
        self._servers = servers
        self._wait_ms = wait_ms
        self._options = options
        self._channels = options.channel_settings()
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    async def _open(self) -> Client:
        keep_freed_memory()
        if self._options.faults is not None:
            _log.warning("this client makes faults on purpose: %s", self._options.faults.text())
        pool = ConnectionPool(self._servers, self._options, self._channels)
        try:
            await pool.open(self._wait_ms)
        except BaseException:
            await pool.close()
            raise
        return Client(pool)

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.close()


class Client(Requesting):
    """A connected client, created by `connect`. It belongs to the event loop in which it was created.

    Attributes:
        admin: Topics, group offsets, statistics.
    """

    @cached_property
    def admin(self) -> Admin:
        """Topics, groups, stores, statistics."""
        from trovemq.admin import Admin  # not imported for look-ups and sends

        return Admin(self._pool)

    # --- sending --------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: Buffer,
        *,
        keys: Keys = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        message_id: str | None = None,
        queue_id: int | None = None,
        broker: str | None = None,
        ordering_key: str | None = None,
        message_group: str | None = None,
        priority: int | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
    ) -> SendReceipt:
        """Sends one message at once and waits for its acknowledgement. Arguments, receipt and errors are
        those of `Producer.send`."""
        producer = self._last_producer
        if producer is None or producer.topic != topic:
            producer = self._producer_of(topic)
        return await producer.send(
            body,
            keys=keys,
            tag=tag,
            properties=properties,
            message_id=message_id,
            queue_id=queue_id,
            broker=broker,
            ordering_key=ordering_key,
            message_group=message_group,
            priority=priority,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
        )

    def transaction(self, *, broker: str | None = None, timeout_ms: int | None = None) -> AtomicTransaction:
        """Messages of several topics, and acknowledgements, that are stored together or not at all.

            async with client.transaction() as tx:
                await tx.send("orders", b"order 42")
                await tx.send("stock", b"-1")
                tx.ack(message)

        All of it goes to one broker, at the end of the block; an exception within it rolls back.
        (`Producer.transaction` is RocketMQ's transaction, with half messages and a checker.)

        Args:
            broker: The broker; None for one that has all the topics.
            timeout_ms: How long the transaction may take; None: no limit here, and 60 s at the broker.

        Raises:
            TroveError: REQUEST_ILLEGAL for a time-out that is not positive.
        """
        tracing = self._pool.options.tracing
        if tracing is not None:
            from trovemq._produce.traced_transaction import TracedAtomicTransaction

            return TracedAtomicTransaction(tracing, self._pool, broker=broker, timeout_ms=timeout_ms)
        from trovemq.atomic import AtomicTransaction

        return AtomicTransaction(self._pool, broker=broker, timeout_ms=timeout_ms)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Cancels a delayed message before its time: it is never delivered.

        Args:
            topic: Its topic.
            recall_handle: From the receipt of its send.

        Returns:
            The message's id. A message that was recalled before is not an error.

        Raises:
            TroveError: RECALL_HANDLE_ILLEGAL if the handle is unreadable or the message was delivered;
                BROKER_UNREACHABLE, …
        """
        from trovemq._produce.recalling import recall

        check_text("recall_handle", recall_handle, errors.RECALL_HANDLE_ILLEGAL)
        return await recall(self._pool, topic, recall_handle)

    def _producer_of(self, topic: str) -> Producer:
        producer = self._producers.get(topic)
        if producer is None:
            self._drop_idle_producer()
            producer = self._producers[topic] = self.producer(topic)
        self._producers.move_to_end(topic)
        self._last_producer = producer
        return producer

    def _drop_idle_producer(self) -> None:
        limit = self._pool.options.producers_max
        if len(self._producers) < limit:
            return
        idle = next((topic for topic, p in self._producers.items() if not p.in_flight_bytes), None)
        if idle is None:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{limit} topics have messages in flight (producers_max)")
        del self._producers[idle]

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = 0.0,
        batch_bytes_max: int = 1 << 20,
        in_flight_bytes_max: int = 64 << 20,
        retry_in_doubt: bool = False,
        checker: Checker | None = None,
        idempotent: bool = False,
        producer_id: str | None = None,
    ) -> Producer:
        """A producer of one topic, to be used as an async context manager.

        Args:
            topic: The topic.
            linger_ms: How long a batch waits for more messages; 0: it is sent in the next iteration of the
                event loop.
            batch_bytes_max: The most bytes of a batch of single messages.
            in_flight_bytes_max: The most unacknowledged bytes; `send` and `send_batch` wait while there are
                more.
            retry_in_doubt: Whether messages that may have been stored are sent again: none is lost if the
                broker comes back, but a message may be stored twice (with the same message id).
            checker: Decides about a message whose transaction is still open, in this process or an
                earlier one: called with the message, returns (or awaits) a TransactionResolution.
            idempotent: Numbers the messages, for topics with the option deduplicate: a message that may have
                been stored is sent again (retry_in_doubt) and stored once, and the broker reports gaps
                (`SendReceipt.sequence_gap`, the metric trovemq_producer_missing_total, its log). Delayed
                messages and those of `Producer.transaction` get no number: they are recognised by their
                message ids. A commit of `Client.transaction` is recognised by the transaction's id; its
                messages must not have numbers.
            producer_id: As idempotent, with an id that is the same in the next process: the numbers continue
                after each broker's last one. Only one running producer may use an id: the messages of a
                second one are refused with PRODUCER_SEQUENCE_CONFLICT. A client with an access key adds it
                and `:` before the id; brokers with authentication let no other user use this id.

        Raises:
            TroveError: TOPIC_ILLEGAL for a name that no record can carry, PRODUCER_SEQUENCE_ILLEGAL,
                REQUEST_ILLEGAL.
        """
        from trovemq._produce.sequences import SequenceAssigner
        from trovemq.producer import Producer

        check_amount("linger_ms", linger_ms)
        check_amount("batch_bytes_max", batch_bytes_max, above=True)
        check_amount("in_flight_bytes_max", in_flight_bytes_max, above=True)
        check_callable("checker", checker)
        check_optional_text("producer_id", producer_id, errors.PRODUCER_SEQUENCE_ILLEGAL)
        self._pool.check_open()
        producer = Producer(
            self._pool,
            recordable_topic(topic),
            linger_ms=linger_ms,
            batch_bytes_max=batch_bytes_max,
            in_flight_bytes_max=in_flight_bytes_max,
            retry_in_doubt=retry_in_doubt,
            checker=checker,
            sequence_assigner=SequenceAssigner(producer_id, self._pool.access_key)
            if idempotent or producer_id is not None
            else None,
        )
        self._all_producers.add(producer)
        return producer

    # --- subscribing ----------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        group: str,
        *,
        filter: str = "*",  # noqa: A002  RocketMQ's word
        tags: Sequence[str] | None = None,
        sql: str | None = None,
        invisible_ms: int | None = None,
        prefetch: int | None = None,
        prefetch_bytes_max: int = 32 << 20,
        handler: Handler | None = None,
        broadcast: bool = False,
        start: Start | None = None,
        wait_for_topic: bool = False,
    ) -> Subscription:
        """The messages of a topic for a consumer group: each goes to one member, until one consumes it.

            async with client.subscribe("orders", group="billing") as messages:
                async for message in messages:
                    async with message.process():
                        ...

        A message is delivered again, with a higher `attempt`, when it is returned, when its consumer is gone,
        or when `invisible_ms` is over; after the group's attempts are used up it goes to the topic
        `%DLQ%GROUP`. An orderly group gets one message of a message group at a time, and the next one after
        that is settled. A group that is created by its first use is orderly if one of its topics is of type
        FIFO. An existing group stays as it is: if it does not keep a FIFO topic's order, this client logs a
        warning once (`trovemq group alter GROUP --orderly` changes the group).

        Args:
            topic: The topic.
            group: The consumer group; the broker creates it at first use, unless configured otherwise.
            filter: A tag expression: `paid`, `paid || refunded`, `*`.
            tags: A list of tags instead: messages with one of them.
            sql: An SQL-92 condition on properties instead: `amount > 10 AND region IN ('eu', 'us')`.
            invisible_ms: How long a message is leased to this subscriber (10 s to 12 h, as RocketMQ's simple
                consumer); None: as long as this client lives (as its push consumer).
            prefetch: The most messages that are received ahead of the program. None: twice as many as it
                works on at once, or the messages of 250 ms of its work if these are more, 256 at most (a
                broadcast: 256). When another member joins the group, messages that the program has not begun
                are returned; they have used no attempt.
            prefetch_bytes_max: The most bytes of bodies received ahead; exceeded by at most one batch.
            handler: Consumes a message that an operator sends to this client (`trovemq consume-directly`).
            broadcast: Every subscriber gets every message: queues are pulled by offset, positions are kept
                in this process alone, and nothing is redelivered (`ack` and `nack` do nothing). The group is
                a name only.
            start: Where a group begins in a topic that it has never read: `earliest`, `latest` (messages that
                are stored from now on), or a time. A group that has read any of its queues, on any broker,
                continues at its offsets, and reads queues that came later from their beginning; so it does
                where a broker that has the topic cannot be asked. None: as the broker's setting
                `new_group_start` says, which is `earliest` by default. A broadcast begins there each time;
                None means `latest`.
            wait_for_topic: A topic that does not exist yet is waited for, and then read from its beginning
                (or from a time). Otherwise entering raises TOPIC_NOT_FOUND.

        Returns:
            A Subscription, to be entered.

        Raises:
            TroveError: REQUEST_ILLEGAL, FILTER_ILLEGAL for arguments that do not fit together.
        """
        from trovemq.subscription import SubscribeOptions, Subscription

        options = SubscribeOptions(
            filter=filter,
            tags=tags,
            sql=sql,
            invisible_ms=invisible_ms,
            prefetch=prefetch,
            prefetch_bytes_max=prefetch_bytes_max,
            handler=handler,
            broadcast=broadcast,
            start=start,
            wait_for_topic=wait_for_topic,
        )
        return Subscription(self._pool, topic, group, options, self._subscriptions)

    async def consume(
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
        """Calls `handler` for each message, until it is cancelled or the client is closed.

        A message is consumed when its handler returns. If the handler raises, this is logged, and the message
        is delivered again with back-off. Operators can have messages consumed directly.

        Args:
            topic: The topic; this and all arguments that are not described here are those of `subscribe`.
            group: The consumer group.
            handler: A function of one message. One that is not async runs in a thread, so it may block.
            concurrency: The most handlers that run at a time, 1 to 10,000.

        Raises:
            TroveError: TOPIC_NOT_FOUND; BROKER_UNREACHABLE if no broker of the topic can be reached; a
                broker's refusal, also later; the errors of `subscribe`.
        """
        subscription = self.subscribe(
            topic,
            group,
            filter=filter,
            tags=tags,
            sql=sql,
            invisible_ms=invisible_ms,
            prefetch=prefetch,
            prefetch_bytes_max=prefetch_bytes_max,
            handler=handler,
            broadcast=broadcast,
            start=start,
            wait_for_topic=wait_for_topic,
        )
        subscription.works_on(concurrency)
        async with subscription:
            await subscription.consume(handler, concurrency)

    def run(
        self,
        handlers: Handlers,
        *,
        drain_seconds: float = 30.0,
        signals: Sequence[signal.Signals] | None = None,
    ) -> Running:
        """Runs handlers: `await client.run(handlers)` in a program that does nothing else, until a signal;
        `async with client.run(handlers)` within another program, a web server for example, until the end of
        the block.

            handlers = trovemq.Handlers()

            @handlers.handle("orders", "billing", on_error={Refused: "dead_letter"})
            async def bill(message): ...

            await client.run(handlers)

        At the signal the client receives no more messages, lets running calls end, and returns all other
        messages. A second signal cancels the running calls.

        Args:
            handlers: The handlers to run.
            drain_seconds: How long running calls may take to end; then they are cancelled and their messages
                returned.
            signals: The signals that end it. None: SIGTERM and SIGINT where it is awaited, none for a block,
                which `Running.stop` ends, or leaving it. Handlers that the program has are called, too.
                Signals arrive only if the loop runs in the main thread.

        Raises:
            TroveError: REQUEST_ILLEGAL (no handlers); when awaited or entered, as `subscribe`.
        """
        from trovemq.running import Running

        return Running(self.subscribe, handlers, drain_seconds=drain_seconds, signals=signals)

    # --- pulling --------------------------------------------------------------------------------------

    async def pull(
        self,
        topic: str,
        *,
        queue_id: int = 0,
        offset: int | None = None,
        follow: bool = False,
        wait_ms: int = 15_000,
        tags: Sequence[str] | None = None,
        bytes_max: int = 1 << 20,
        broker: str | None = None,
    ) -> AsyncGenerator[Message, None]:
        """The messages of one queue, from an offset or from its first message on, one at a time.

        Damaged records are left out. Ending the iteration early, or cancelling it, closes the stream.

        Args:
            topic: The topic.
            queue_id: The queue.
            offset: The first queue offset; None for the first one that the queue still has.
            follow: Whether to wait for new messages at the end of the queue, instead of ending there.
            wait_ms: With `follow`, how long the broker holds one fetch at the end of the queue.
            tags: Only messages with one of these tags.
            bytes_max: The most bytes of one fetch.
            broker: The broker; needed if several have the queue.

        Raises:
            TroveError: OFFSET_OUT_OF_RANGE (fields min_offset, max_offset), TOPIC_RECREATED, TOPIC_NOT_FOUND,
                QUEUE_NOT_FOUND, BROKER_AMBIGUOUS, BROKER_UNREACHABLE, …
        """
        batches = self.pull_batches(
            topic,
            queue_id=queue_id,
            offset=offset,
            follow=follow,
            wait_ms=wait_ms,
            tags=tags,
            bytes_max=bytes_max,
            broker=broker,
        )
        async with aclosing(batches):
            async for batch in batches:
                for message in batch.messages():
                    yield message

    async def pull_batches(
        self,
        topic: str,
        *,
        queue_id: int = 0,
        offset: int | None = None,
        end: int | None = None,
        bytes_max: int = 4 << 20,
        messages_max: int = 0,
        tags: Sequence[str] | None = None,
        prefetch: int = 3,
        follow: bool = False,
        wait_ms: int = 15_000,
        broker: str | None = None,
        topic_identity: int | None = None,
    ) -> AsyncGenerator[FetchedBatch, None]:
        """The records of one queue from an offset on, in batches, without any work per message.

        A broken stream is opened again at the same place, within `reconnect_timeout_ms`. If the topic is
        deleted and recreated meanwhile, the iteration ends with TOPIC_RECREATED.

        Args:
            topic: The topic.
            queue_id: The queue.
            offset: The first queue offset; None for the first one that the queue still has.
            end: The queue offset to stop before; None for the end of the queue, or with `follow` for no end.
            bytes_max: The most bytes of one batch, which has at least one record.
            messages_max: The most messages of one batch; 0 for as many as fit.
            tags: Only records with one of these tags.
            prefetch: Batches that are in flight or wait for the reader (with `tags` one is in flight).
            follow: Whether to wait for new messages at the end of the queue; otherwise the iteration ends
                there.
            wait_ms: With `follow`, how long the broker holds one fetch at the end of the queue.
            broker: The broker; needed if several have the queue.
            topic_identity: The identity of the topic that the offset is of, from the batch or from
                `queue_offsets`: if the topic was recreated since, TOPIC_RECREATED is raised. None: the
                offset is not checked.

        Raises:
            TroveError: OFFSET_OUT_OF_RANGE (fields min_offset, max_offset), TOPIC_RECREATED, TOPIC_NOT_FOUND,
                QUEUE_NOT_FOUND, BROKER_AMBIGUOUS, BROKER_UNREACHABLE, …
        """
        from trovemq._consume.fetch_plan import NO_END
        from trovemq._consume.puller import Puller, PullRequest

        check_text("topic", topic, errors.TOPIC_ILLEGAL)
        check_numbers(queue_id=queue_id, offset=offset, end=end, prefetch=prefetch, wait_ms=wait_ms)
        check_numbers(bytes_max=bytes_max, messages_max=messages_max, topic_identity=topic_identity)
        if tags is not None:
            check_texts("tags", tags, errors.FILTER_ILLEGAL)
        if prefetch < 1 or bytes_max < 1 or not 0 <= messages_max < 1 << 31:
            text = f"prefetch={prefetch}, bytes_max={bytes_max}, messages_max={messages_max}"
            raise TroveError(errors.REQUEST_ILLEGAL, text)
        request = PullRequest(
            topic,
            queue_id,
            offset,
            bytes_max,
            tuple(tags or ()),
            prefetch,
            follow,
            wait_ms,
            broker,
            end=NO_END if end is None else end,
            messages_max=messages_max,
            topic_identity=topic_identity,
        )
        async with aclosing(Puller(self._pool, request).batches()) as batches:
            async for batch in batches:
                yield batch
