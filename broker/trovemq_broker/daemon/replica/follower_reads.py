"""The reads of one follower: its services, and the routes that lead clients to them, on its present store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trovemq_broker.cluster.empty_routes import EmptyRoutes
from trovemq_broker.cluster.self_route import SelfRouteService
from trovemq_broker.cluster.view import LocalBroker
from trovemq_broker.daemon.broker_description import description_of
from trovemq_broker.daemon.opening import clock_ms
from trovemq_broker.daemon.routed_topics import RoutedTopics
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.produce.replica_acks import Grown
from trovemq_broker.replication.read_lag import ReaderLag
from trovemq_broker.server.core.read_core import FollowerCore
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.native.replica_reads import ReplicaReads
from trovemq_daemon.addresses import Address
from trovemq_daemon.reply_budget import ReplyBudget
from trovemq_store.engine.message_store import MessageStore


class FollowerReads:
    """`open`, `close`, and again with the store that takes the place of the one before. `addresses` of its
    clients' ports are set before."""

    def __init__(
        self,
        settings: BrokerSettings,
        version: str,
        services: ReplicaReads,
        routes: EmptyRoutes,
        traffic: Traffic,
        replies: ReplyBudget,
    ) -> None:
        self._settings = settings
        self._version = version
        self._services = services
        self._routes: Final = routes
        self._traffic = traffic
        self._replies = replies
        self.addresses: tuple[Address, Address | None] = settings.listen_address, None
        """Of gRPC, and of TLS, for clients."""
        self.admit: Callable[[MessageStore], None] = lambda _store: None
        """Admits callers by the store's topics: who has created one may read it."""

    def open(self, store: MessageStore, lag: Callable[[], ReaderLag]) -> None:
        """Serves the store's messages from now on, unless they are served already."""
        if self._services.core is not None:
            return
        core = FollowerCore(
            store,
            self._settings,
            clock_ms=clock_ms,
            traffic=self._traffic,
            replies=self._replies,
            lag=lag,
        )
        self.admit(store)
        self._services.open(core, self._settings.store_path)
        view = LocalBroker(description_of(store, *self.addresses, self._version), RoutedTopics(store))
        self._routes.own = SelfRouteService(view, clock_ms)

    async def close(self) -> None:
        """No call uses the store when it returns."""
        self._routes.own = None
        await self._services.close()

    def grown(self, queues: Grown) -> None:
        """These queues have new messages."""
        self._services.grown(queues)
