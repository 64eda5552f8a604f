"""A client's sessions with all brokers that have a topic."""

from __future__ import annotations

import asyncio

from trovemq._net.connections import ConnectionPool
from trovemq._net.outages import EVERYWHERE
from trovemq._rocketmq.session import Role, Session
from trovemq._rocketmq.statuses import may_pass
from trovemq.models.cluster import BrokerInfo
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class Sessions:
    """One session with each broker that has a topic; follows the routes.

    Args:
        pool: The client's connections.
        topic: The topic. Names that begin with % are in no route: then every broker is used.
        role: The client's role for each of them.
    """

    def __init__(self, pool: ConnectionPool, topic: str, role: Role) -> None:
        self._pool = pool
        self._topic = topic
        self._role = role
        self._sessions: dict[str, Session] = {}
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Opens a session with every broker that has the topic, and waits for at least one. After a failure
        too, `close` is to be called: messages may have come, which are returned before.

        Raises:
            TroveError: TOPIC_NOT_FOUND if no broker has the topic; a broker's refusal; BROKER_UNREACHABLE if
                none can be reached.
        """
        self._pool.check_open()
        self._pool.check_loop()
        if not self._brokers():
            await self._pool.refresh()
        if not self._brokers():
            raise await self._pool.explained(self._not_found())
        self._pool.routes.listen(self._changed.set)
        self._adjust([])
        await self._wait_for_one()
        self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def _wait_for_one(self) -> None:
        results = await asyncio.gather(
            *(session.opened() for session in self._sessions.values()), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        refused = [error for error in failures if not (isinstance(error, TroveError) and may_pass(error))]
        if refused or len(failures) == len(results):
            raise (refused or failures)[0]

    def get(self, broker: str) -> Session | None:
        """The session with that broker."""
        return self._sessions.get(broker)

    def all(self) -> list[Session]:
        """All present sessions."""
        return list(self._sessions.values())

    async def stop_work(self) -> None:
        """Ends the tasks beside all streams."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await asyncio.gather(*(session.stop_work() for session in self.all()))

    async def close(self) -> None:
        """Ends all sessions, and reports that to the brokers."""
        self._pool.routes.unlisten(self._changed.set)
        await self.stop_work()
        await asyncio.gather(*(session.close(notify=True) for session in self.all()))
        self._sessions.clear()

    def _brokers(self) -> list[BrokerInfo]:
        brokers = [route.broker for route in self._pool.routes.state.brokers]
        if self._topic.startswith("%"):
            return brokers
        return [broker for broker in brokers if self._pool.routes.has_topic(self._topic, broker.name)]

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            gone: list[Session] = []
            self._adjust(gone)
            self._note_missing()
            await asyncio.gather(*(session.close(notify=False) for session in gone))

    def _note_missing(self) -> None:
        """Reports that no broker has the topic any more, unless one that had it has left the routes."""
        lost = self._pool.routes.lost_brokers_of(self._topic)
        if not self._sessions and not lost and self._role.missing is not None:
            self._role.missing(EVERYWHERE, self._not_found())

    def _not_found(self) -> TroveError:
        return TroveError(errors.TOPIC_NOT_FOUND, f"no broker has the topic {self._topic}", topic=self._topic)

    def _adjust(self, gone: list[Session]) -> None:
        """Opens sessions with new brokers; moves those of brokers that left the routes to `gone`."""
        brokers = {broker.name: broker for broker in self._brokers()}
        gone += [self._sessions.pop(name) for name in self._sessions.keys() - brokers.keys()]
        for name, broker in brokers.items():
            if name not in self._sessions:
                session = self._sessions[name] = Session(self._pool, broker, self._role)
                session.start()
