"""Founds the table of a cluster, when the first broker follows: with all that this broker has.

A founding that ended half-way is completed while the owner is the only member: missing entries are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from trovemq_broker.cluster.config_changes import Make
from trovemq_broker.cluster.config_owner_side import OwnerSide
from trovemq_broker.cluster.config_store import ConfigStore
from trovemq_broker.cluster_config.entries import ConfigChange
from trovemq_broker.cluster_config.local_tables import LocalTables
from trovemq_broker.cluster_config.owner import CHANGES_AT_ONCE_MAX, begin_founding
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_daemon.logging import get_logger
from trovemq_proto.errors import TroveError

ROUNDS: Final = 3
"""Comparisons of the table with the broker: a topic may be made while it is founded."""


async def found(store: ConfigStore, broker: str, draw_mark: Callable[[], str]) -> None:
    """Makes the table, with this broker as its owner and only member. TroveError DISK_FULL, STORE_FAILED."""
    store_id = await store.store_id()
    async with store.lock:
        cluster, mark = draw_mark(), draw_mark()
        await store.save(begin_founding(store.stored, broker, store_id, cluster=cluster, mark=mark))
    get_logger().info("config.founded", cluster=store.stored.head.cluster)


async def add_missing(side: OwnerSide, table: ConfigTable, tables: LocalTables) -> None:
    """Adds the entries of this broker that the table lacks. TroveError DISK_FULL, STORE_FAILED."""
    for _ in range(ROUNDS):
        missing = [one for one in tables.founding() if table.get(*one.key) is None]
        for begin in range(0, len(missing), CHANGES_AT_ONCE_MAX):
            await _add(side, missing[begin : begin + CHANGES_AT_ONCE_MAX])
        if not missing:
            return


async def _add(side: OwnerSide, changes: Sequence[ConfigChange]) -> None:
    """Adds them together; if one is refused, each alone. A refused one stays this broker's own, and is
    shown as unlisted."""
    try:
        await side.store(_still_missing(changes))
    except TroveError as error:
        if len(changes) > 1:
            for change in changes:
                await _add(side, [change])
        elif error.spec.code >= 500 or error.spec.retriable:
            raise
        else:
            get_logger().error("config.not_founded", entry=str(changes[0].key), message=str(error))


def _still_missing(changes: Sequence[ConfigChange]) -> Make:
    return lambda table: [one for one in changes if table.get(*one.key) is None]
