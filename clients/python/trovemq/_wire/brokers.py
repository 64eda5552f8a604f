"""The calls of BrokerService on one connection; they return values of the SDK."""

from __future__ import annotations

from collections.abc import Sequence

from trovemq.models.broker import BrokerCondition, DrainStatus, SettingDescription
from trovemq_proto.v1 import broker_pb2

from .connection import Connection

_SERVICE = "BrokerService/"


class BrokerCalls:
    """BrokerService of one broker; every failure is a TroveError."""

    def __init__(self, connection: Connection) -> None:
        self._ask = connection.ask

    async def drain(self, grace_ms: int, stop_wait_max_ms: int | None) -> DrainStatus:
        request = broker_pb2.DrainRequest(
            grace_ms=grace_ms, stop=stop_wait_max_ms is not None, stop_wait_max_ms=stop_wait_max_ms or 0
        )
        return _drain(await self._ask(_SERVICE + "Drain", request, broker_pb2.DrainStatus.FromString))

    async def undrain(self) -> DrainStatus:
        request = broker_pb2.UndrainRequest()
        return _drain(await self._ask(_SERVICE + "Undrain", request, broker_pb2.DrainStatus.FromString))

    async def drain_status(self) -> DrainStatus:
        request = broker_pb2.GetDrainRequest()
        return _drain(await self._ask(_SERVICE + "GetDrain", request, broker_pb2.DrainStatus.FromString))

    async def condition(self) -> BrokerCondition:
        request = broker_pb2.GetConditionRequest()
        decode = broker_pb2.BrokerCondition.FromString
        found = await self._ask(_SERVICE + "GetCondition", request, decode)
        return BrokerCondition(
            broker=found.broker,
            version=found.version,
            now=found.now,
            drain=_state(found.drain),
            reasons=tuple(found.reasons),
            warnings=tuple(found.warnings),
            disk_used_percent=found.disk_used_percent,
            disk_full=found.disk_full,
            open_files=found.open_files,
            open_files_max=found.open_files_max,
            store_mode=found.store_mode,
            authentication=found.authentication,
            plain_exposed=found.plain_exposed,
            http_exposed=found.http_exposed,
            interpreter=found.interpreter,
        )

    async def settings(self, names: Sequence[str]) -> list[SettingDescription]:
        request = broker_pb2.ListSettingsRequest(names=names)
        decode = broker_pb2.ListSettingsReply.FromString
        return [
            _setting(one) for one in (await self._ask(_SERVICE + "ListSettings", request, decode)).settings
        ]

    async def set_setting(self, name: str, value: str) -> SettingDescription:
        request = broker_pb2.SetSettingRequest(name=name, value=value)
        return _setting(await self._ask(_SERVICE + "SetSetting", request, broker_pb2.Setting.FromString))


def _setting(one: broker_pb2.Setting) -> SettingDescription:
    return SettingDescription(
        name=one.name,
        value=one.value,
        source=one.source,
        needs_restart=one.restart,
        started_with=one.started_with,
        form=one.form,
        what=one.what,
        broker=one.broker,
    )


def _drain(status: broker_pb2.DrainStatus) -> DrainStatus:
    return DrainStatus(status.broker, _state(status.state), status.stop, status.open_transactions)


def _state(state: int) -> str:
    return str(broker_pb2.DrainState.Name(state)).lower()
