"""The brokers that have a topic: a task for each of them, which follows the routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from trovemq._net.connections import ConnectionPool
from trovemq._net.new_topics import learn_topic
from trovemq._net.outages import EVERYWHERE
from trovemq.models.cluster import BrokerInfo
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)


class TopicBrokers:
    """One task for each broker that has a topic.

    Args:
        pool: The client's connections.
        topic: The topic. Names that begin with % are in no route: then every broker is used.
        work: The task; it is cancelled when its broker leaves the routes.
        missing: Called when no broker has the topic any more.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        work: Callable[[BrokerInfo], Coroutine[Any, Any, None]],
        missing: Callable[[str, TroveError], None],
    ) -> None:
        self._pool = pool
        self._topic = topic
        self._work = work
        self._missing = missing
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    async def open(self, first: Callable[[], Awaitable[None]]) -> None:
        """Starts the tasks, waits for `first`, and follows the routes from then on. After a failure it may be
        called again, or `stop`.

        Raises:
            TroveError: TOPIC_NOT_FOUND if no broker has the topic; NOT_LEADER, BROKER_UNREACHABLE; and as
                `first`.
        """
        self._pool.check_open()
        self._pool.check_loop()
        if not self._brokers():
            await learn_topic(self._pool, self._topic)
        if not self._brokers():
            self._pool.routes.check_refused()
            raise await self._pool.explained(self._not_found())
        self._pool.routes.listen(self._changed.set)
        self._adjust()
        await first()
        self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Ends all tasks."""
        self._pool.routes.unlisten(self._changed.set)
        tasks = [*self._tasks.values(), *([self._follower] if self._follower is not None else [])]
        self._tasks.clear()
        await _end(tasks)

    def _brokers(self) -> list[BrokerInfo]:
        brokers = [route.broker for route in self._pool.routes.state.brokers]
        if self._topic.startswith("%"):
            return brokers
        return [broker for broker in brokers if self._pool.routes.has_topic(self._topic, broker.name)]

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            gone = self._adjust()
            self._note_missing()
            await _end(gone)

    def _note_missing(self) -> None:
        """Reports that no broker has the topic any more, unless one that had it has left the routes."""
        if not self._tasks and not self._pool.routes.lost_brokers_of(self._topic):
            self._missing(EVERYWHERE, self._not_found())

    def _not_found(self) -> TroveError:
        return TroveError(errors.TOPIC_NOT_FOUND, f"no broker has the topic {self._topic}", topic=self._topic)

    def _adjust(self) -> list[asyncio.Task[None]]:
        """Starts tasks for new brokers. Returns those of brokers that left the routes."""
        brokers = {broker.name: broker for broker in self._brokers()}
        gone = [self._tasks.pop(name) for name in self._tasks.keys() - brokers.keys()]
        loop = asyncio.get_running_loop()
        for name, broker in brokers.items():
            if name not in self._tasks:
                task = loop.create_task(self._work(broker), name=f"{self._topic} of broker {name}")
                task.add_done_callback(_log_failure)
                self._tasks[name] = task
        return gone


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s failed", task.get_name(), exc_info=task.exception())
