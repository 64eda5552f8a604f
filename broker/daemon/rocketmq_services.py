"""What RocketMQ 5 clients work with, and the operator's view of groups, wired on the open store's parts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any, Final

import grpc

from broker.daemon.services import StoreServices, clock_ms, unique_keys
from broker.daemon.settings import BrokerSettings
from broker.maintenance import consumer_tasks
from broker.server.native.group_service import GroupService, GroupServiceParts
from broker.server.native.track_service import TrackParts, TrackService
from broker.server.rocketmq.commands import ClientCommands
from broker.server.rocketmq.parts import RocketmqParts
from broker.server.rocketmq.service import RocketmqService
from trovemq_daemon.addresses import Address
from trovemq_daemon.logging import set_log_level
from trovemq_proto.v1 import biography_pb2_grpc, group_pb2_grpc

EXPIRE_INTERVAL_S: Final = 1.0
EXPIRE_BROKEN_INTERVAL_S: Final = 0.1
NONCE_BYTES: Final = 16


class RocketmqServices:
    """The v2 protocol's services and the group service; the daemon starts `background`."""

    def __init__(
        self, services: StoreServices, settings: BrokerSettings, advertised: Address, version: str
    ) -> None:
        self._services = services
        self._model = services.model
        self.registry = services.clients
        self.registry.add_gone_listener(self._model.delivery.release_client)
        commands = ClientCommands(self.registry, lambda: secrets.token_hex(NONCE_BYTES))
        self.service = RocketmqService(
            RocketmqParts(
                store=services.store,
                groups=self._model.groups,
                delivery=self._model.delivery,
                timers=self._model.timers,
                transactions=self._model.transactions,
                settings=self._model.settings,
                appender=services.appender,
                coalescer=services.coalescer,
                group_commit=services.group_commit,
                puller=services.puller,
                long_polls=services.long_polls,
                waits=services.receive_waits,
                offsets=services.offsets,
                search=services.search_offset,
                registry=self.registry,
                commands=commands,
                traffic=services.traffic,
                turns=services.turns,
                broker=settings.name,
                advertised=advertised,
                version=version,
                clock_ms=clock_ms,
                next_message_id=unique_keys().next,
                set_log_level=set_log_level,
            )
        )
        self._groups = GroupService(
            GroupServiceParts(
                store=services.store,
                model=self._model,
                changes=services.group_changes,
                offsets=services.offsets,
                registry=self.registry,
                commands=commands,
                durable=services.group_commit.durable,
                turns=services.turns,
                clock_ms=clock_ms,
            )
        )
        self._tracks = TrackService(
            TrackParts(
                store=services.store,
                model=self._model,
                registry=self.registry,
                durable=services.group_commit.durable,
                one_more=services.queries.one_more,
                turns=services.turns,
                clock_ms=clock_ms,
            )
        )

    def add_to(self, server: grpc.aio.Server) -> None:
        self.service.add_to(server)
        group_pb2_grpc.add_GroupServiceServicer_to_server(self._groups, server)
        biography_pb2_grpc.add_BiographyServiceServicer_to_server(self._tracks, server)

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs beside the requests, by name, until it is cancelled."""
        return {
            "deliveries": consumer_tasks.flush_events_and_renew_leases(self._model, self._is_alive, clock_ms),
            "redeliveries": self.service.receiver.watch_redeliveries(),
            "transactions": consumer_tasks.check_transactions(
                self._model, self.service.check_transaction, clock_ms
            ),
            "clients": self._expire_clients(),
        }

    def _is_alive(self, client_id: str) -> bool:
        return self.registry.is_alive(client_id, self._lease_time())

    async def _expire_clients(self) -> None:
        expire_at = 0.0
        while True:
            await asyncio.sleep(EXPIRE_BROKEN_INTERVAL_S)
            now = asyncio.get_running_loop().time()
            if now < expire_at:
                self.registry.expire_broken(self._lease_time())
            else:
                self.registry.expire(self._lease_time())
                expire_at = now + EXPIRE_INTERVAL_S

    def _lease_time(self) -> int:
        """The time by which clients are gone: as with leases, a pause of the broker's own does not count."""
        return self._model.delivery.lease_time.at(clock_ms())

    async def drain(self, timeout_s: float) -> None:
        """The telemetry streams end."""
        await self.service.end_streams(timeout_s)
