"""Subscriptions in threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import Self

from trovemq import subscription as aio
from trovemq.subscription import check_concurrency
from trovemq.sync._calls import SyncWrapper, waits
from trovemq.sync.received import ReceivedBatch, ReceivedMessage

_log = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], object]


class Subscription(SyncWrapper[aio.Subscription]):
    """The messages of one topic; made by `Client.subscribe`, used as a context manager and iterator.

        with client.subscribe("orders", group="billing") as messages:
            for message in messages:
                with message.process():   # consumed at its end; delivered again after an exception
                    bill(message.body)

    Several threads may iterate over one subscription. `close`, from any thread, ends the iteration.
    """

    close = waits(aio.Subscription.close)

    def end(self) -> None:
        """Ends the iteration, from any thread. Received messages can be settled until `close`, which returns
        the others."""
        self._thread.call(self._inner.end)

    @property
    def topic(self) -> str:
        """The topic."""
        return self._inner.topic

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._inner.group

    @property
    def client_id(self) -> str:
        """The id by which brokers know this subscriber; "" for a broadcast."""
        return self._inner.client_id

    @property
    def prefetched(self) -> int:
        """The number of received messages that the program did not get yet."""
        return self._inner.prefetched

    @property
    def refused(self) -> int:
        """Messages whose acknowledgement or return did not reach the broker in time: they are delivered
        again."""
        return self._inner.refused

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        message = self._thread.run(self._inner.next())
        if message is None:
            raise StopIteration
        return ReceivedMessage.of(message, self._thread)

    def batches(self, count_max: int = 100, wait: float = 0.1) -> Iterator[ReceivedBatch]:
        """The messages in lists of 1 to `count_max`, until the subscription is closed. An incomplete list
        waits `wait` seconds for more."""
        while batch := self._thread.run(self._inner.next_batch(count_max, wait)):
            yield ReceivedBatch(batch, self._thread)

    def works_on(self, concurrency: int) -> None:
        """Sets how many messages the program works on at once, 1 to 10,000: without a
        `prefetch` the subscription receives at least twice as many ahead."""
        check_concurrency(concurrency)
        self._thread.call(lambda: self._inner.works_on(concurrency))

    def consume(self, handler: Handler, concurrency: int) -> None:
        """Runs a handler for each message, in `concurrency` threads, until the subscription is closed. An
        exception of the handler returns its message. Raises TroveError if the subscription fails."""
        self.works_on(concurrency)
        free = Semaphore(concurrency)

        def work(message: ReceivedMessage) -> None:
            try:
                with message.process():
                    handler(message)
            except Exception:
                aio.log_failure(message)
            finally:
                free.release()

        with ThreadPoolExecutor(concurrency, thread_name_prefix=f"trovemq {self.topic}") as threads:
            while True:
                free.acquire()  # otherwise messages would wait here that another member could have
                message = next(self, None)
                if message is None:
                    return
                threads.submit(work, message)
