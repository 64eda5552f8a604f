"""The calls of ClusterConfigService for operators, on one connection; they return values of the SDK."""

from __future__ import annotations

from collections.abc import Iterable

from trovemq.models.config import ConfigGeneration, ConfigMember, ConfigName, ConfigStatus, ConfigTakeOver
from trovemq_proto.v1 import cluster_config_pb2 as pb

from .connection import Connection

_SERVICE = "ClusterConfigService/"


class ConfigCalls:
    """ClusterConfigService of one broker; every failure is a TroveError."""

    def __init__(self, connection: Connection) -> None:
        self._ask = connection.ask

    async def status(self) -> ConfigStatus:
        request, decode = pb.GetConfigStatusRequest(), pb.ConfigStatus.FromString
        found = await self._ask(_SERVICE + "GetConfigStatus", request, decode)
        return ConfigStatus(
            broker=found.broker,
            state=found.state,
            problem=found.problem,
            cluster=found.head.cluster,
            owner=found.head.owner,
            generation=_generation(found.head.generation),
            version=found.head.version,
            digest=found.head.digest,
            promised=_generation(found.promised),
            members=tuple(ConfigMember(one.broker, one.version, one.live) for one in found.members),
            unlisted=_names(found.unlisted),
            differing=_names(found.differing),
            withheld=_names(found.withheld),
            dropped=_names(found.dropped),
            failed=_names(found.failed),
        )

    async def take_over(self, cluster: str, source: str) -> ConfigTakeOver:
        request = pb.TakeOverConfigRequest(cluster=cluster, source=source)
        reply = await self._ask(_SERVICE + "TakeOverConfig", request, pb.TakeOverConfigReply.FromString)
        return ConfigTakeOver(
            cluster=reply.head.cluster,
            owner=reply.head.owner,
            generation=_generation(reply.head.generation),
            version=reply.head.version,
            source=reply.source,
            promised=tuple(reply.promised),
            unreached=tuple(reply.unreached),
            dropped=_names(reply.dropped),
        )

    async def clear_dropped(self) -> int:
        """How many dropped changes it had listed."""
        reply = await self._ask(
            _SERVICE + "ClearDropped", pb.ClearDroppedRequest(), pb.ClearDroppedReply.FromString
        )
        return reply.cleared

    async def remove_member(self, broker: str) -> tuple[str, ...] | None:
        """The brokers that do not know of it yet; None: it was no member."""
        request = pb.RemoveMemberRequest(broker=broker)
        reply = await self._ask(_SERVICE + "RemoveMember", request, pb.RemoveMemberReply.FromString)
        return tuple(reply.pending) if reply.removed else None


def _generation(generation: pb.ConfigGeneration) -> ConfigGeneration:
    return ConfigGeneration(generation.number, generation.mark)


def _names(names: Iterable[pb.ConfigName]) -> tuple[ConfigName, ...]:
    return tuple(ConfigName(one.kind, one.name, one.message) for one in names)
