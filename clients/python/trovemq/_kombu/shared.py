"""Shared queues, which end with their process. All connections of a process have them together.

A program may declare its reply queue by one connection and consume it by another one later, as Celery does
with `rpc://`: a reply that comes in between waits here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty
from typing import ClassVar, Final

import trovemq.sync
from trovemq._kombu.envelope import Payload, payload_of
from trovemq._kombu.readers import Reader
from trovemq.received import ReceivedFields
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

SHARED_WAITING_MAX: Final = 10_000
"""Messages of one shared queue that wait; of more, the oldest are dropped, and the log says so once."""
CONTROL_GROUP: Final = "celery-control"
CONTROL_AHEAD: Final = 256
Shared = tuple[Payload, ReceivedFields]
QueuesOf = Callable[[str, str], set[str]]
"""The queues of an exchange and a routing key."""


class SharedQueues:
    """The shared queues of this process on one control topic, which one reader receives.

    Args:
        url: Of the broker. No connection's client serves here: each connection may close first.
        topic: The control topic.

    Raises TroveError if the broker does not answer.
    """

    _of_process: ClassVar[dict[tuple[str, str], SharedQueues]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, url: str, topic: str) -> None:
        self.topic = topic
        self._key = url, topic
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Shared]] = {}
        self._owners: dict[object, tuple[Callable[[], None], set[str]]] = {}
        self._overflowed: set[str] = set()
        self._client = trovemq.sync.connect(url)
        try:
            subscription = self._client.subscribe(topic, CONTROL_GROUP, broadcast=True, start="latest")
            self._reader = Reader(topic, subscription, self._arrived, ahead=CONTROL_AHEAD)
        except BaseException:
            self._client.close()
            raise

    @classmethod
    def entered(cls, url: str, topic: str, owner: object, arrived: Callable[[], None]) -> SharedQueues:
        """The queues of the process, made by its first connection. `arrived`: is called in another thread
        after each message, until `owner` leaves."""
        with cls._guard:
            queues = cls._of_process.get((url, topic))
            if queues is None:
                queues = cls._of_process[url, topic] = cls(url, topic)
            queues._owners = {**queues._owners, owner: (arrived, set())}
            return queues

    @classmethod
    def forget(cls) -> None:
        """In a forked process, which has no thread of its parent's."""
        cls._of_process, cls._guard = {}, threading.Lock()

    def leave(self, owner: object) -> None:
        """Drops the queues that no other connection has declared. The last one closes the reader."""
        with self._guard:
            self._owners = {other: one for other, one in self._owners.items() if other is not owner}
            with self._lock:
                for queue in self._waiting.keys() - set().union(
                    *(names for _, names in self._owners.values())
                ):
                    del self._waiting[queue]
            if self._owners:
                return
            self._end()
        with suppress(TroveError):
            self._reader.close()
            self._client.close()

    def declare(self, queue: str, owner: object) -> None:
        """Keeps the control topic's messages for the queue from now on."""
        with self._lock:
            self._waiting.setdefault(queue, deque(maxlen=SHARED_WAITING_MAX))
            self._owners[owner][1].add(queue)

    def delete(self, queue: str) -> None:
        """Drops the queue, also for the other connections."""
        with self._lock:
            self._waiting.pop(queue, None)
            for _, names in self._owners.values():
                names.discard(queue)

    def has(self, queue: str) -> bool:
        """Whether a connection of this process has declared it."""
        return queue in self._waiting

    def pop(self, queue: str, queues_of: QueuesOf) -> Shared:
        """The queue's next message. Raises Empty; TroveError if the control topic cannot be read."""
        with self._lock:
            self._distribute(queues_of)
            waiting = self._waiting.get(queue)
            if not waiting:
                raise Empty
            return waiting.popleft()

    def size(self, queue: str, queues_of: QueuesOf) -> int:
        """How many messages wait in it."""
        with self._lock:
            self._distribute(queues_of)
            return len(self._waiting.get(queue, ()))

    def clear(self, queue: str) -> None:
        """Drops its messages."""
        with self._lock:
            self._waiting.get(queue, deque()).clear()

    def _arrived(self) -> None:
        for arrived, _ in self._owners.values():
            arrived()

    def _distribute(self, queues_of: QueuesOf) -> None:
        with suppress(Empty):
            while True:
                self._put(self._fetch(), queues_of)

    def _fetch(self) -> ReceivedFields:
        try:
            return self._reader.fetch()
        except TroveError:
            self._end()  # a connection that connects again gets a new reader
            raise

    def _end(self) -> None:
        if self._of_process.get(self._key) is self:
            del self._of_process[self._key]

    def _put(self, message: ReceivedFields, queues_of: QueuesOf) -> None:
        try:
            payload = payload_of(message)
        except ValueError as error:
            _log.warning("a message of %s was skipped: %s", self.topic, error)
            return
        where: Mapping[str, str] = payload["properties"].get("delivery_info", {})
        for queue in (
            queues_of(where.get("exchange", ""), where.get("routing_key", "")) & self._waiting.keys()
        ):
            waiting = self._waiting[queue]
            if len(waiting) == SHARED_WAITING_MAX and queue not in self._overflowed:
                self._overflowed.add(queue)
                _log.warning("queue %s has %d waiting messages: its oldest are dropped", queue, len(waiting))
            waiting.append((payload, message))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=SharedQueues.forget)
