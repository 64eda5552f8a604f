"""Reads the requests of BrokerService as commands, and makes its replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trovemq_broker.admin.condition import Condition
from trovemq_broker.admin.drain import Drain, DrainState
from trovemq_broker.admin.shown_settings import ShownSetting
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import broker_pb2

SERVICE: Final = broker_pb2.DESCRIPTOR.services_by_name["BrokerService"]
NAMES_MAX: Final = 1_024

_STATES: Final = {
    DrainState.SERVING: broker_pb2.SERVING,
    DrainState.DRAINING: broker_pb2.DRAINING,
    DrainState.DRAINED: broker_pb2.DRAINED,
    DrainState.STOPPING: broker_pb2.STOPPING,
}


@dataclass(frozen=True, slots=True)
class BeginDrain:
    """`stop_wait_max_ms`: None if the broker keeps running when it is drained."""

    grace_ms: int
    stop_wait_max_ms: int | None


@dataclass(frozen=True, slots=True)
class SetSetting:
    """A new value, as TOML, for a setting of the running broker."""

    name: str
    value: str


def drain_of(request: broker_pb2.DrainRequest) -> BeginDrain:
    """The command of a Drain."""
    return BeginDrain(request.grace_ms, request.stop_wait_max_ms if request.stop else None)


def setting_names(request: broker_pb2.ListSettingsRequest) -> Sequence[str]:
    """The names in a ListSettings; none for all settings. Raises TroveError LIMIT_EXCEEDED."""
    if len(request.names) > NAMES_MAX:
        raise TroveError(errors.LIMIT_EXCEEDED, f"at most {NAMES_MAX} settings are shown at once")
    return request.names


def setting_of(request: broker_pb2.SetSettingRequest) -> SetSetting:
    """The command of a SetSetting."""
    return SetSetting(request.name, request.value)


def drain_status(drain: Drain, broker: str) -> broker_pb2.DrainStatus:
    return broker_pb2.DrainStatus(
        state=_STATES[drain.state],
        broker=broker,
        stop=drain.stops,
        open_transactions=drain.open_transactions,
    )


def condition_reply(found: Condition, state: DrainState, broker: str) -> broker_pb2.BrokerCondition:
    return broker_pb2.BrokerCondition(
        broker=broker,
        version=found.version,
        now=found.now_ms,
        drain=_STATES[state],
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
        interpreter=found.interpreter,
    )


def settings_reply(shown: Iterable[ShownSetting], broker: str) -> broker_pb2.ListSettingsReply:
    return broker_pb2.ListSettingsReply(settings=[setting_reply(one, broker) for one in shown])


def setting_reply(shown: ShownSetting, broker: str) -> broker_pb2.Setting:
    return broker_pb2.Setting(
        name=shown.name,
        value=shown.value,
        source=shown.source,
        restart=shown.restart,
        started_with=shown.started_with,
        form=shown.form,
        what=shown.what,
        broker=broker,
    )
