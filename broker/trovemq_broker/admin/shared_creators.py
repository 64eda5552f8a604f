"""The quota of topics or groups of a creator, counted in the cluster's configuration.

Creations of one moment share a write, so that none finds the others in the table: those that wait are
counted, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trovemq_broker.cluster_config.entries import Kind
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_store.topics.creators import Creator


class CreationsWaiting:
    """The creations of one kind that are under way."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._waiting: dict[object, tuple[str, str]] = {}
        """Name and creator of each one that was allowed."""

    @contextmanager
    def one(self) -> Iterator[object]:
        """The block makes a creation, which it names by the value."""
        creation = object()
        try:
            yield creation
        finally:
            self._waiting.pop(creation, None)

    def check(self, table: ConfigTable, creation: object, name: str, creator: Creator) -> None:
        """TroveError LIMIT_EXCEEDED if the creator may not create another one. In the block of one()."""
        if not creator.name:
            return
        waiting = sum(
            1
            for other, (its_name, by) in self._waiting.items()
            if other is not creation and by == creator.name and table.live(self._kind, its_name) is None
        )
        creator.check(str(self._kind), table.made_by(self._kind, creator.name) + waiting)
        self._waiting[creation] = name, creator.name
