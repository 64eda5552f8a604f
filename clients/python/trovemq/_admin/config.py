"""The cluster's configuration: who owns it, which copy each broker has, and another owner."""

from __future__ import annotations

from trovemq._common.arguments import check_optional_text, check_text
from trovemq._net.all_brokers import ask_brokers
from trovemq._net.configurations import units_of
from trovemq._net.connections import ConnectionPool
from trovemq._wire.configs import ConfigCalls
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import BrokerInfo
from trovemq.models.config import OLDER, ConfigStatus, ConfigTakeOver
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class Config:
    """The cluster's configuration; `Client.admin.config`. All calls raise TroveError."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def status(self, broker: str | None = None) -> BrokerAnswers[ConfigStatus]:
        """The configuration that each broker has. A broker that is older than this call answers with the
        state `unknown`.

        Raises:
            TroveError: BROKER_UNREACHABLE if none answers; ACCESS_DENIED, …
        """

        async def ask(info: BrokerInfo) -> ConfigStatus:
            try:
                return await ConfigCalls(self._pool.connection(info)).status()
            except TroveError as error:
                if error.fields.get("grpc_status") != "UNIMPLEMENTED":
                    raise
                problem = "the broker is older than this command: upgrade it"
                return ConfigStatus(broker=info.name, state=OLDER, problem=problem)

        return await ask_brokers(self._pool, self._pool.routes.brokers(broker), ask, broker=broker)

    async def take_over(
        self, broker: str, *, cluster: str | None = None, source: str | None = None
    ) -> ConfigTakeOver:
        """Makes a broker the owner of the cluster's configuration, with the highest copy among the brokers
        that it can reach. The former owner follows when it is back. Changes that only unreachable brokers
        hold are lost; of a call that fails half-way no broker may be the owner: repeat it.

        Args:
            broker: The next owner.
            cluster: The id of the cluster's configuration, where the brokers have several.
            source: The broker whose copy continues; None for the highest. It is needed where copies
                contradict each other, because a store was put back from an older copy.

        Raises:
            TroveError: BROKER_NOT_FOUND (no such broker, or no broker has a copy), CONFIG_OTHER_CLUSTER (of
                several clusters one must be named), CONFIG_OWNER_OLD (a source must be named),
                CONFIG_GENERATION_OLD (another take-over came between: repeat it), ACCESS_DENIED, …
        """
        check_text("broker", broker)
        check_optional_text("cluster", cluster)
        check_optional_text("source", source)
        info = self._pool.routes.broker(broker)
        return await ConfigCalls(self._pool.connection(info)).take_over(cluster or "", source or "")

    async def clear_dropped(self, broker: str) -> int:
        """Clears the list of changes that a take-over has dropped on a broker, which keeps it until then.

        Returns:
            How many there were.

        Raises:
            TroveError: BROKER_NOT_FOUND, ACCESS_DENIED, …
        """
        check_text("broker", broker)
        return await ConfigCalls(self._pool.connection(self._pool.routes.broker(broker))).clear_dropped()

    async def remove_member(self, broker: str) -> BrokerAnswers[str]:
        """Removes a broker that has stopped from the cluster's configuration, and from the placements of
        topics. It cannot return with its store: with an empty one it joins as a new broker.

        Returns:
            Its name for each configuration of which it was a member; `pending` names the brokers that do not
            know of it yet.

        Raises:
            TroveError: CONFIG_OWNER_STAYS (it owns the configuration), CONFIG_OWNER_UNREACHABLE, …
        """
        check_text("broker", broker)
        removed, pending = [], set[str]()
        for unit in units_of(self._pool.routes.brokers()):
            if unit[0].config is None:
                continue
            owner = unit[0].config.owner
            try:
                found = await ConfigCalls(self._pool.connection(unit[0])).remove_member(broker)
            except TroveError as error:
                if error.fields.get("grpc_status") == "UNIMPLEMENTED":
                    continue  # it is older than this call
                if error.spec is not errors.CONFIG_OWNER_MOVED:
                    raise
                text = f"the owner {owner} is away, so {broker} is still a member of the cluster"
                raise TroveError(errors.CONFIG_OWNER_UNREACHABLE, text, broker=broker) from error
            if found is not None:
                removed.append(broker)
                pending.update(found)
        return BrokerAnswers(removed, pending=pending)
