"""BrokerService: settings, condition and draining of the broker process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.admin.condition import Condition
from trovemq_broker.admin.drain import Drain, DrainState
from trovemq_broker.admin.shown_settings import RunningSettings, ShownSetting
from trovemq_daemon.grpc_services import add_service
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import broker_pb2

SERVICE: Final = broker_pb2.DESCRIPTOR.services_by_name["BrokerService"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

NAMES_MAX: Final = 1_024

_STATES: Final = {
    DrainState.SERVING: broker_pb2.SERVING,
    DrainState.DRAINING: broker_pb2.DRAINING,
    DrainState.DRAINED: broker_pb2.DRAINED,
    DrainState.STOPPING: broker_pb2.STOPPING,
}


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
        add_service(server, SERVICE, self)

    async def drain(self, request: broker_pb2.DrainRequest, _context: Context) -> broker_pb2.DrainStatus:
        self._drain.begin(request.grace_ms, request.stop_wait_max_ms if request.stop else None)
        return self._status()

    async def undrain(self, _request: broker_pb2.UndrainRequest, _context: Context) -> broker_pb2.DrainStatus:
        self._drain.undo()
        return self._status()

    async def get_drain(
        self, _request: broker_pb2.GetDrainRequest, _context: Context
    ) -> broker_pb2.DrainStatus:
        return self._status()

    async def get_condition(
        self, _request: broker_pb2.GetConditionRequest, _context: Context
    ) -> broker_pb2.BrokerCondition:
        found = await self._look()
        return broker_pb2.BrokerCondition(
            broker=self._broker,
            version=found.version,
            now=found.now_ms,
            drain=_STATES[self._drain.state],
            reasons=found.reasons,
            warnings=found.warnings,
            disk_used_percent=found.disk_used_percent,
            disk_full=found.disk_full,
            open_files=found.open_files,
            open_files_max=found.open_files_max,
            store_mode=found.store_mode,
            authentication=found.authentication,
            plain_exposed=found.plain_exposed,
            http_exposed=found.http_exposed,
        )

    async def list_settings(
        self, request: broker_pb2.ListSettingsRequest, _context: Context
    ) -> broker_pb2.ListSettingsReply:
        if len(request.names) > NAMES_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"at most {NAMES_MAX} settings are shown at once")
        shown = self._settings.shown(request.names)
        return broker_pb2.ListSettingsReply(settings=[self._setting(one) for one in shown])

    async def set_setting(
        self, request: broker_pb2.SetSettingRequest, _context: Context
    ) -> broker_pb2.Setting:
        return self._setting(self._settings.set(request.name, request.value))

    def _setting(self, shown: ShownSetting) -> broker_pb2.Setting:
        return broker_pb2.Setting(
            name=shown.name,
            value=shown.value,
            source=shown.source,
            restart=shown.restart,
            started_with=shown.started_with,
            form=shown.form,
            what=shown.what,
            broker=self._broker,
        )

    def _status(self) -> broker_pb2.DrainStatus:
        return broker_pb2.DrainStatus(
            state=_STATES[self._drain.state],
            broker=self._broker,
            stop=self._drain.stops,
            open_transactions=self._drain.open_transactions,
        )
