"""BrokerService: settings, condition and draining of the broker process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc

from trovemq_broker.admin.condition import Condition
from trovemq_broker.admin.drain import Drain
from trovemq_broker.admin.shown_settings import RunningSettings
from trovemq_broker.server.wire import broker_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.grpc_services import add_service


class BrokerService:
    """The methods of broker.proto. Every refusal is a TroveError."""

    def __init__(
        self, broker: str, drain: Drain, settings: RunningSettings, look: Callable[[], Awaitable[Condition]]
    ) -> None:
        self._broker = broker
        self._drain = drain
        self._settings = settings
        self._look = look

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, wire.SERVICE, self)

    async def drain(self, request: Request, _context: Context) -> Reply:
        command = wire.drain_of(request)
        self._drain.begin(command.grace_ms, command.stop_wait_max_ms)
        return self._status()

    async def undrain(self, _request: Request, _context: Context) -> Reply:
        self._drain.undo()
        return self._status()

    async def get_drain(self, _request: Request, _context: Context) -> Reply:
        return self._status()

    async def get_condition(self, _request: Request, _context: Context) -> Reply:
        return wire.condition_reply(await self._look(), self._drain.state, self._broker)

    async def list_settings(self, request: Request, _context: Context) -> Reply:
        return wire.settings_reply(self._settings.shown(wire.setting_names(request)), self._broker)

    async def set_setting(self, request: Request, _context: Context) -> Reply:
        command = wire.setting_of(request)
        return wire.setting_reply(self._settings.set(command.name, command.value), self._broker)

    def _status(self) -> Reply:
        return wire.drain_status(self._drain, self._broker)
