"""A producer's connections to the brokers that have its topic: on these they ask about open transactions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from trovemq._common.backoff import may_pass
from trovemq._net.connections import ConnectionPool
from trovemq._net.topic_brokers import TopicBrokers
from trovemq._wire.connection import Stream
from trovemq._wire.producers import ALIVE, LEAVE, HalfCheck, ProducerCalls, start_frame
from trovemq.models.cluster import BrokerInfo
from trovemq.received import ReceivedMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 10.0
CHECKS_AT_ONCE_MAX: Final = 16  # of one broker; it repeats others in its next round
LEAVE_TIMEOUT_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class UnresolvedTransaction:
    """A transaction whose end a broker does not know: it asks for the end."""

    calls: ProducerCalls
    broker: str
    check: HalfCheck

    @property
    def transaction_id(self) -> str:
        """The half message's id."""
        return self.check.transaction_id

    def half(self) -> ReceivedMessage:
        """The half message. Raises TroveError RECORD_DAMAGED, COMPRESSION_UNSUPPORTED."""
        return self.check.half(self.broker)

    async def end(self, *, commit: bool) -> None:
        """Commits, or rolls back. Raises TroveError TRANSACTION_ILLEGAL if the transaction is not open any
        more, BROKER_UNREACHABLE, …"""
        await self.calls.end_half(self.check.topic, self.transaction_id, commit=commit)


Check: TypeAlias = Callable[[UnresolvedTransaction], Coroutine[Any, Any, None]]


class HalfChecks:
    """The connections of one producer; they follow the routes.

    Args:
        pool: The client's connections.
        topic: The producer's topic.
        client_id: Its id.
        check: Decides about an open transaction, and ends it.
    """

    def __init__(self, pool: ConnectionPool, topic: str, client_id: str, check: Check) -> None:
        self._pool = pool
        self._topic = topic
        self._client_id = client_id
        self._check = check
        self._streams: dict[str, _CheckStream] = {}
        self._brokers = TopicBrokers(pool, topic, self._serve, lambda _broker, _error: None)

    async def open(self) -> None:
        """Connects with every broker that has the topic, and waits for at least one. After a failure too,
        `close` is to be called.

        Raises:
            TroveError: TOPIC_NOT_FOUND if no broker has the topic; a broker's refusal; BROKER_UNREACHABLE if
                none can be reached.
        """
        await self._brokers.open(self._wait_for_first)

    async def close(self) -> None:
        """Reports the end of the producer to the brokers."""
        await asyncio.gather(*(stream.leave() for stream in self._streams.values()))
        await self._brokers.stop()
        self._streams.clear()

    async def _serve(self, broker: BrokerInfo) -> None:
        stream = self._stream_of(broker)
        try:
            await stream.keep()
        finally:
            self._streams.pop(broker.name, None)

    def _stream_of(self, broker: BrokerInfo) -> _CheckStream:
        stream = self._streams.get(broker.name)
        if stream is None:
            stream = _CheckStream(self._pool, broker, self._topic, self._client_id, self._check)
            self._streams[broker.name] = stream
        return stream

    async def _wait_for_first(self) -> None:
        brokers = [route.broker for route in self._pool.routes.state.brokers]
        opening = [
            self._stream_of(one) for one in brokers if self._pool.routes.has_topic(self._topic, one.name)
        ]
        results = await asyncio.gather(*(stream.opened() for stream in opening), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        refused = [error for error in failures if not (isinstance(error, TroveError) and may_pass(error))]
        if refused or len(failures) == len(results):
            raise (refused or failures)[0]


class _CheckStream:
    """The stream to one broker; a broken one is opened again."""

    def __init__(
        self, pool: ConnectionPool, broker: BrokerInfo, topic: str, client_id: str, check: Check
    ) -> None:
        self._pool = pool
        self._broker = broker
        self._topic = topic
        self._client_id = client_id
        self._check = check
        self._stream: Stream | None = None
        self._writing = asyncio.Lock()
        self._answered = asyncio.Event()  # the broker has answered, or a failure has arrived
        self._over = asyncio.Event()  # the last stream has ended
        self._failure: TroveError | None = None  # of the last stream
        self._connections = 0  # answered starts
        self._leaving = False
        self._checks: set[asyncio.Task[None]] = set()

    async def opened(self) -> None:
        """Waits for the broker's first answer. Raises TroveError if the first attempt failed."""
        try:
            async with asyncio.timeout(self._pool.options.connect_timeout_ms / 1000):
                await self._answered.wait()
        except TimeoutError:
            text = f"broker {self._broker.name} did not answer"
            raise TroveError(errors.REQUEST_TIMEOUT, text, broker=self._broker.name) from None
        if not self._connections:
            assert self._failure is not None
            raise self._failure

    async def keep(self) -> None:
        """Keeps a stream open until it is cancelled, or has left."""
        failures = 0
        try:
            while not self._pool.closed and not self._leaving:
                connections = self._connections
                try:
                    await self._serve()
                except TroveError as error:
                    self._failed(error)
                except Exception:  # a failed check must not end the connection
                    _log.exception("the stream of %s to broker %s broke", self._client_id, self._broker.name)
                failures = failures + 1 if self._connections == connections else 1
                if not self._leaving:
                    await asyncio.sleep(self._pool.options.backoff.seconds(failures))
        finally:
            tasks = list(self._checks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _failed(self, error: TroveError) -> None:
        self._failure = error
        self._answered.set()
        if not self._leaving and not may_pass(error):
            _log.warning("broker %s refuses %s: %s", self._broker.name, self._client_id, error)

    async def leave(self) -> None:
        """Reports the end of the producer to the broker, which answers with the end of the stream."""
        self._leaving = True
        stream = self._stream
        if stream is None or not self._connections:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):
                await self._send(stream, LEAVE)
                await stream.end()
                await self._over.wait()
        except (TroveError, TimeoutError) as error:
            _log.debug("broker %s did not get the end of %s: %s", self._broker.name, self._client_id, error)

    # --- the stream -----------------------------------------------------------------------------------
    def _calls(self) -> ProducerCalls:
        """The broker's calls, by the present connection."""
        broker = self._pool.routes.find(self._broker.name) or self._broker
        return ProducerCalls(self._pool.connection(broker), self._client_id)

    async def _serve(self) -> None:
        calls = self._calls()
        stream = self._stream = calls.open_checks()
        self._over.clear()
        beating = asyncio.get_running_loop().create_task(self._beat(stream))
        try:
            await self._send(stream, start_frame([self._topic]))
            while True:
                check = await stream.read()
                if check is None:
                    self._connections += 1
                    self._answered.set()
                else:
                    self._begin_check(UnresolvedTransaction(calls, self._broker.name, check))
        finally:
            self._stream = None
            self._over.set()
            beating.cancel()
            stream.cancel()

    async def _send(self, stream: Stream, frame: bytes) -> None:
        async with self._writing:
            await stream.send(frame)

    async def _beat(self, stream: Stream) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self._send(stream, ALIVE)
            except TroveError:
                return  # `read` reports it

    def _begin_check(self, transaction: UnresolvedTransaction) -> None:
        if len(self._checks) >= CHECKS_AT_ONCE_MAX:
            return
        name = f"check of {transaction.transaction_id} for broker {self._broker.name}"
        task = asyncio.get_running_loop().create_task(self._check(transaction), name=name)
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)
        task.add_done_callback(_log_failure)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        if not isinstance(task.exception(), TroveError):
            _log.error("%s failed", task.get_name(), exc_info=task.exception())
        else:
            _log.warning("%s ended: %s", task.get_name(), task.exception())
