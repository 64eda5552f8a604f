"""The role of this broker in the cluster's configuration, as others see it: whether messages are served,
reasons and warnings for readiness, the status for operators."""

from __future__ import annotations

from dataclasses import dataclass

from trovemq_broker.cluster.config_follower_side import FollowerSide
from trovemq_broker.cluster.config_local import LocalSide
from trovemq_broker.cluster.config_owner_side import OwnerSide
from trovemq_broker.cluster.owner_finder import OwnerFinder
from trovemq_broker.cluster.view import ConfigSummary
from trovemq_broker.cluster_config.config_reasons import reason, warning
from trovemq_broker.cluster_config.follower import Serving
from trovemq_broker.cluster_config.status import NodeState, NodeStatus
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.take_over import status_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


@dataclass(slots=True)
class Role:
    """`owner` or `follower`; neither: the broker is alone. `removed`: it is no member any more. `is_known`:
    the start has read it; before, a broker that joins would pass for one that is alone."""

    owner: OwnerSide | None = None
    follower: FollowerSide | None = None
    removed: bool = False
    is_known: bool = False

    @property
    def is_alone(self) -> bool:
        return self.owner is None and self.follower is None


class ConfigCondition:
    def __init__(
        self, broker: str, stored: StoredTable, role: Role, local: LocalSide, finder: OwnerFinder
    ) -> None:
        self._broker = broker
        self._stored = stored
        self._role = role
        self._local = local
        self._finder = finder
        self._served = False

    @property
    def serves(self) -> bool:
        """Whether messages may be served. Once served, they flow on, unless this broker was removed."""
        if self._role.removed or not self._role.is_known:
            return False
        if not self._served:
            follower = self._role.follower
            self._served = follower is None or follower.serving.serves
        return self._served

    def refusal(self) -> TroveError | None:
        """The error for messages and receivers while they are not served."""
        if self.serves:
            return None
        spec = errors.CONFIG_MEMBER_REMOVED if self._role.removed else errors.SERVICE_NOT_AVAILABLE
        text = f"broker {self._broker} serves no messages: {self.problem()}; use another broker"
        return TroveError(spec, text, broker=self._broker)

    def problem(self) -> str:
        """For readiness: why messages are not served, or an empty text."""
        if not self._role.is_known:
            return "it reads its configuration"
        return "" if self.serves else reason(self._state(), self._finder.owner(), problem=self._trouble())

    def warning(self) -> str:
        """For readiness; empty if there is none."""
        own = ""
        if self.serves:
            seen = str(self._stored.promised)
            own = warning(self._state(), self._finder.owner(), generation=seen, problem=self._trouble())
        local = "" if self._role.is_alone else self._local.warning()
        return "; ".join(filter(None, (own, self._finder.other_cluster(), local)))

    def _trouble(self) -> str:
        """Why this broker cannot change the table, or does not follow its owner; empty if it does."""
        owner, follower = self._role.owner, self._role.follower
        if owner is not None:
            try:
                owner.owner.check()
            except TroveError as error:
                return error.message
        if follower is not None and follower.serving is not Serving.CURRENT:
            return follower.problem
        return ""

    def status(self) -> NodeStatus:
        return NodeStatus(
            state=self._state(),
            problem=self._trouble(),
            copy=status_of(self._stored, self._broker),
            members=self._role.owner.members() if self._role.owner is not None else (),
            **self._local.notes(),
        )

    def _state(self) -> NodeState:
        owner, follower = self._role.owner, self._role.follower
        if self._role.removed:
            return NodeState.REMOVED
        if owner is not None:
            return NodeState.CONTRADICTED if owner.owner.contradicted else NodeState.OWNER
        if follower is None:
            return NodeState.ALONE
        if self._stored.is_superseded and self._stored.head.owner == self._broker:
            return NodeState.SUPERSEDED
        return NodeState(follower.serving)

    def summary(self) -> ConfigSummary | None:
        """For the routes; None if the configuration is this broker's own."""
        head = self._stored.head
        if not self._stored.table.exists or self._role.removed:
            return None
        return ConfigSummary(
            head.cluster, head.owner, head.generation.number, head.generation.mark, head.version
        )
