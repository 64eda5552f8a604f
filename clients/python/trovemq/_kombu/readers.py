"""Threads that receive: one for each queue that a channel consumes, and one for the control topic.

A reader receives one message ahead of its channel (and its subscription `read_ahead`), so that other workers
get the rest, and the broker's order by priority holds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty
from typing import Final, Protocol

from trovemq.received import ReceivedFields
from trovemq_proto.errors import TroveError

END_SECONDS_MAX: Final = 10.0


def begun(work: Callable[[], None], name: str) -> threading.Thread | None:
    """A thread that does the work; None if it was done here, as at the end of the process, where no thread
    begins any more."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        work()
        return None
    return thread


class Subscribed(Protocol):
    """A subscription of `trovemq.sync`."""

    def __enter__(self) -> object: ...
    def __iter__(self) -> Iterator[ReceivedFields]: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


class Reader:
    """Receives a queue's messages in a thread, each after the one before was fetched.

    Args:
        topic: The topic of its messages.
        subscription: Is entered here, and closed by `close`.
        arrived: Called in the thread after each message, and after the end.
        ahead: How many messages may wait here.
    """

    def __init__(
        self, topic: str, subscription: Subscribed, arrived: Callable[[], None], ahead: int = 1
    ) -> None:
        self.topic = topic
        self._subscription = subscription
        self._arrived = arrived
        self._waiting: deque[ReceivedFields] = deque()
        self._free = threading.Semaphore(ahead)
        self._failure: TroveError | None = None
        self._ended = False
        subscription.__enter__()
        self._thread = threading.Thread(target=self._read, name=f"trovemq {topic}", daemon=True)
        self._thread.start()

    def fetch(self) -> ReceivedFields:
        """The next message. Raises Empty if none waits; TroveError if the subscription has failed."""
        try:
            message = self._waiting.popleft()
        except IndexError:
            if self._failure is not None:
                raise self._failure from None
            raise Empty from None
        self._free.release()
        return message

    def end(self) -> list[ReceivedFields]:
        """Receives no more; returns the messages that were not fetched, to be settled before `close`."""
        self._ended = True
        with suppress(TroveError):
            self._subscription.end()
        self._free.release()
        self._thread.join(END_SECONDS_MAX)
        rest = list(self._waiting)
        self._waiting.clear()
        return rest

    def close(self) -> None:
        """Closes the subscription, which returns the messages that it has received ahead."""
        self.end()
        with suppress(TroveError):
            self._subscription.close()

    @staticmethod
    def close_all(readers: Iterable[Reader]) -> None:
        """Closes them at once: each may wait for a broker that is away."""
        for thread in [begun(reader.close, f"trovemq end of {reader.topic}") for reader in readers]:
            if thread is not None:
                thread.join()

    def _read(self) -> None:
        try:
            messages = iter(self._subscription)
            self._free.acquire()
            while not self._ended:
                message = next(messages, None)
                if message is None:
                    return
                self._waiting.append(message)
                self._arrived()
                self._free.acquire()
        except TroveError as error:
            if not self._ended:
                self._failure = error
                self._arrived()
