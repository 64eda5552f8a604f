"""RocketMQ's transactions: messages that are stored at once, and visible only after their sender has
committed them.

Several messages that appear together, in one step, are something else: `Client.transaction` (trovemq.atomic).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import Final, Protocol, Self, Unpack

from trovemq._common.backoff import may_pass
from trovemq._net.connections import ConnectionPool
from trovemq._produce.deferred import DeferredSender
from trovemq._produce.half_checks import HalfChecks, UnresolvedTransaction
from trovemq._wire.producers import ProducerCalls
from trovemq.fetched import Buffer
from trovemq.receipts import SendReceipt
from trovemq.received import ReceivedMessage
from trovemq.send_arguments import Keys, MessageArguments
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

MESSAGES_MAX: Final = 1_024  # of one transaction
CHECK_AFTER_MS_MAX: Final = 3_600_000
DECISIONS_KEPT_MAX: Final = 65_536  # decisions that the brokers may not have received


class TransactionResolution(Enum):
    """The end of a half message; UNKNOWN: the broker asks again later."""

    UNKNOWN = "UNKNOWN"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


Checker = Callable[[ReceivedMessage], TransactionResolution | Awaitable[TransactionResolution]]


class SendHalf(Protocol):
    """Sends a half message. `check_after_ms`: delay of the broker's first check; None: its setting. The
    receipt has a transaction_id. TroveError: it was refused, or with in_doubt it may have been stored."""

    async def __call__(
        self,
        body: Buffer,
        *,
        broker: str | None,
        check_after_ms: int | None,
        **message: Unpack[MessageArguments],
    ) -> SendReceipt:
        """The receipt has a transaction_id."""


class Transactions:
    """A producer's transactions: ends them, and answers brokers' checks of open ones.

    A decision that a broker may not have received is kept, and is the answer to the broker's check. The
    checker decides only about messages that this process does not know.

    Args:
        pool: The client's connections.
        topic: The producer's topic.
        sender: Sends half messages; the brokers ask its client id about them.
        checker: The program's decision about messages of earlier processes, or of other producers.
    """

    def __init__(
        self, pool: ConnectionPool, topic: str, sender: DeferredSender, checker: Checker | None
    ) -> None:
        self._pool = pool
        self._sender = sender
        self._checker = checker
        self._checks = HalfChecks(pool, topic, sender.client_id, self._check)
        self._entering = asyncio.Lock()
        self._entered = False
        self._decisions: OrderedDict[str, TransactionResolution] = OrderedDict()

    async def enter(self) -> None:
        """Connects this producer with the brokers, once. Raises TroveError TOPIC_NOT_FOUND, a broker's
        refusal, or BROKER_UNREACHABLE."""
        async with self._entering:
            if self._entered:
                return
            try:
                await self._checks.open()
            except BaseException:
                await self._checks.close()
                raise
            self._entered = True

    async def close(self) -> None:
        """Reports the end of this producer to the brokers."""
        await self._checks.close()

    def transaction(self, check_after_ms: int | None) -> Transaction:
        """A new transaction. `check_after_ms`: delay of the first check, 1 to CHECK_AFTER_MS_MAX; None: the
        broker's setting. Raises TroveError REQUEST_ILLEGAL."""
        if check_after_ms is not None and not 0 < check_after_ms <= CHECK_AFTER_MS_MAX:
            text = f"check_after_ms={check_after_ms} is not in 1..{CHECK_AFTER_MS_MAX}"
            raise TroveError(errors.REQUEST_ILLEGAL, text)
        return Transaction(self, self._sender.send_half, check_after_ms)

    def begun(self, transaction_id: str) -> None:
        """A half message is stored and its transaction is open."""
        self._remember(transaction_id, TransactionResolution.UNKNOWN)

    async def end(self, half: SendReceipt, resolution: TransactionResolution) -> None:
        """Sends the resolution of a half message to its broker, with retries until `delivery_timeout_ms`.

        Raises:
            TroveError: TRANSACTION_ILLEGAL if it is not open any more; with the field in_doubt if the broker
                could not be reached (it will ask, and get this answer while this producer lives).
        """
        assert resolution is not TransactionResolution.UNKNOWN, "an end is a decision"
        self._remember(half.transaction_id, resolution)
        loop, options = asyncio.get_running_loop(), self._pool.options
        deadline, failures = loop.time() + options.delivery_timeout_ms / 1000, 0
        while True:
            try:
                connection = self._pool.connection(self._pool.routes.broker(half.broker))
                calls = ProducerCalls(connection, self._sender.client_id)
                commit = resolution is TransactionResolution.COMMIT
                await calls.end_half(half.topic, half.transaction_id, commit=commit)
                break
            except TroveError as error:
                if error.spec is errors.TRANSACTION_ILLEGAL and failures:
                    break  # an earlier try has arrived
                failures += 1
                delay = options.backoff.seconds(failures)
                if not may_pass(error) and error.spec is not errors.STORE_FAILED:  # it starts again
                    self._decisions.pop(half.transaction_id, None)
                    raise
                if loop.time() + delay > deadline or self._pool.closed:
                    text = f"{error.message}; the broker will ask whether the transaction was committed"
                    raise TroveError(error.spec, text, **{**error.fields, "in_doubt": "true"}) from error
                await asyncio.sleep(delay)
        self._decisions.pop(half.transaction_id, None)

    def check_loop(self) -> None:
        """Raises TroveError EVENT_LOOP_ILLEGAL outside of the client's event loop."""
        self._pool.check_loop()

    def _remember(self, transaction_id: str, resolution: TransactionResolution) -> None:
        self._decisions[transaction_id] = resolution
        self._decisions.move_to_end(transaction_id)
        while len(self._decisions) > DECISIONS_KEPT_MAX:
            self._decisions.popitem(last=False)

    # --- questions of brokers -------------------------------------------------------------------------

    async def _check(self, transaction: UnresolvedTransaction) -> None:
        resolution = self._decisions.get(transaction.transaction_id)
        if resolution is None:
            resolution = await self._ask_checker(transaction)
        if resolution is TransactionResolution.UNKNOWN:
            return
        await transaction.end(commit=resolution is TransactionResolution.COMMIT)
        self._decisions.pop(transaction.transaction_id, None)

    async def _ask_checker(self, transaction: UnresolvedTransaction) -> TransactionResolution:
        if self._checker is None:
            return TransactionResolution.UNKNOWN
        try:
            answer = self._checker(transaction.half())
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception:
            _log.exception("the checker failed on %s", transaction.transaction_id)
            return TransactionResolution.UNKNOWN
        if answer in tuple(TransactionResolution):
            return answer
        _log.error("the checker answered %r, which is not a TransactionResolution", answer)
        return TransactionResolution.UNKNOWN


class Transaction:
    """Messages that become visible by a decision; created by `Producer.transaction`.

        async with producer.transaction() as transaction:
            await transaction.send(b"order 42")      # stored, and invisible
            await database.commit()                  # an exception rolls back

    Each message is committed separately, in the order of sending: readers may see a part of a transaction
    with several messages. Use `Client.transaction` to avoid that.
    """

    def __init__(self, transactions: Transactions, send_half: SendHalf, check_after_ms: int | None) -> None:
        self._transactions = transactions
        self.send_half = send_half
        self._check_after_ms = check_after_ms
        self._halves: list[SendReceipt] = []
        self._ended = False

    async def __aenter__(self) -> Self:
        await self._transactions.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if failure is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except TroveError as error:  # the caller must see the block's own exception
            _log.warning("a rollback did not reach its broker, which will ask for it: %s", error)

    async def send(
        self,
        body: Buffer,
        *,
        keys: Keys = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        message_id: str | None = None,
        broker: str | None = None,
    ) -> SendReceipt:
        """Stores one message that is not visible yet.

        A failed send is not part of the transaction; if it is in doubt, the broker checks it later.

        Args:
            body: The message's bytes.
            keys: One key or several; a look-up by any of them finds the message.
            tag: The message's tag; consumers can filter by it.
            properties: The user's own properties.
            message_id: The UNIQ_KEY; made by the client where None.
            broker: The broker; None: brokers that have the topic take turns.

        Returns:
            A receipt without queue and offsets, with a transaction_id.

        Raises:
            TroveError: MESSAGE_TYPE_CONFLICT for a topic that is not of type TRANSACTION or MIXED;
                LIMIT_EXCEEDED for more than 1,024 messages; REQUEST_ILLEGAL after the end; the message was
                refused, or no answer came in time: its field in_doubt is `true` if it may have been stored.
        """
        self._check_open()
        if len(self._halves) >= MESSAGES_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"a transaction has at most {MESSAGES_MAX} messages")
        half = await self.send_half(
            body,
            keys=keys,
            tag=tag,
            properties=properties,
            message_id=message_id,
            broker=broker,
            check_after_ms=self._check_after_ms,
        )
        self._halves.append(half)
        self._transactions.begun(half.transaction_id)
        return half

    async def commit(self) -> None:
        """Makes the messages visible.

        Raises:
            TroveError: TRANSACTION_ILLEGAL if a broker has ended the transaction after its last check; the
                field in_doubt is `true` if a broker could not be reached: it asks later, and gets this answer
                while the producer lives, afterwards the checker's.
        """
        await self._end(TransactionResolution.COMMIT)

    async def rollback(self) -> None:
        """Drops the messages.

        Raises:
            TroveError: TRANSACTION_ILLEGAL if a broker has ended the transaction after its last check; the
                field in_doubt is `true` if a broker could not be reached: it asks later.
        """
        await self._end(TransactionResolution.ROLLBACK)

    async def _end(self, resolution: TransactionResolution) -> None:
        self._check_open()
        self._ended = True
        failure: TroveError | None = None
        for half in self._halves:
            try:
                await self._transactions.end(half, resolution)
            except TroveError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _check_open(self) -> None:
        if self._ended:
            raise TroveError(errors.REQUEST_ILLEGAL, "the transaction has ended")
        self._transactions.check_loop()
