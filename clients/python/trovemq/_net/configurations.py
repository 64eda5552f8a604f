"""The brokers to ask where some of them share a configuration: one of these is enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trovemq._net.routes import RouteTable
from trovemq.models.cluster import BrokerInfo, ConfigSummary
from trovemq_proto import errors

ASK_ANOTHER = (errors.BROKER_UNREACHABLE, errors.SERVICE_NOT_AVAILABLE, errors.CONFIG_OWNER_MOVED)
"""The call was not made there. (After REQUEST_TIMEOUT it may have been.)"""

Unit = tuple[BrokerInfo, ...]
"""One broker, or those that share a configuration in the order in which they are to be asked."""


def units_of(brokers: Iterable[BrokerInfo]) -> list[Unit]:
    """The brokers, those of one configuration together: its owner first, if it is live."""
    units: list[Unit] = []
    shared: dict[str, list[BrokerInfo]] = {}
    for info in brokers:
        if info.config is None:
            units.append((info,))
        else:
            shared.setdefault(info.config.id, []).append(info)
    return units + [_owner_first(members) for members in shared.values()]


def units_with(routes: RouteTable, names: Sequence[str]) -> list[tuple[Unit, list[str]]]:
    """The units of the named brokers, each with those of its names. One that is not in the routes belongs to
    the only configuration that is shared. Raises TroveError BROKER_NOT_FOUND."""
    units = units_of(routes.brokers())
    shared = [unit for unit in units if unit[0].config is not None]
    named: dict[Unit, list[str]] = {}
    for name in names:
        unit = next((one for one in units if any(info.name == name for info in one)), None)
        if unit is None and len(shared) == 1:
            unit = shared[0]
        if unit is None:
            unit = (routes.broker(name),)
        named.setdefault(unit, []).append(name)
    return list(named.items())


def _owner_first(members: Sequence[BrokerInfo]) -> Unit:
    owner = owner_of(members)
    return tuple(sorted(members, key=lambda info: info.name != owner))


def owner_of(members: Iterable[BrokerInfo]) -> str:
    """The owner of the configuration that the brokers share, at least one: as the newest generation says. A
    former owner that has just returned still names itself."""
    return max((info.config for info in members if info.config is not None), key=_generation).owner


def _generation(config: ConfigSummary) -> int:
    return config.generation
