"""The broker's own topics, groups, users, rules and quotas, as the cluster's configuration needs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trovemq_broker.cluster_config.entries import ConfigChange, Key
from trovemq_broker.cluster_config.reconcile import Action, LocalEntry
from trovemq_proto.errors import TroveError


@dataclass(frozen=True, slots=True)
class Failure:
    """An action that could not be done. It is planned again at a start, and once a minute."""

    action: Action
    error: TroveError


class LocalTables(Protocol):
    """What this broker has. System topics and groups are each broker's own, and no part of it."""

    def founding(self) -> Sequence[ConfigChange]:
        """The creations of all that this broker has, for the table of a new cluster. Topics lie on this
        broker alone."""
        ...

    def entries(self, keys: Collection[Key] | None = None) -> Mapping[Key, LocalEntry]:
        """Those of the keys that exist here; all with None."""
        ...

    async def carry_out(self, actions: Sequence[Action]) -> list[Failure]:
        """Does the actions, in order; they are on disk when this returns. One that fails stops no other."""
        ...
