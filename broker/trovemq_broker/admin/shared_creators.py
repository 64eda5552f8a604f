"""The quota of topics or groups of a creator, counted in the cluster's configuration."""

from __future__ import annotations

from trovemq_broker.cluster_config.entries import Kind
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_store.topics.creators import Creator

_CREATOR = "creator"


def check_creator(table: ConfigTable, kind: Kind, creator: Creator) -> None:
    """TroveError LIMIT_EXCEEDED if the creator may not create another topic or group."""
    if creator.name:
        made = sum(
            1
            for entry in table
            if entry.kind is kind and not entry.deleted and entry.settings.get(_CREATOR) == creator.name
        )
        creator.check(str(kind), made)
