"""The reasons by which `/readyz` says that a store does not serve as it should, and the warnings beside them.

A reason makes the broker unready; a warning deserves attention and hinders no request. Each is a few words;
docs/how-to/run-in-production.md says what to do about it.
"""

from __future__ import annotations

from broker.admin.drain import Drain
from broker.daemon.services import StoreServices
from trovemq_daemon.ops_http import Readiness


def add_store_reasons(readiness: Readiness, services: StoreServices) -> None:
    """Adds the check `store` and the warnings `retention`, `damage` and `trees`."""
    readiness.add("store", lambda: store_problem(services))
    readiness.add_warning("retention", lambda: retention_warning(services))
    readiness.add_warning("damage", lambda: damage_warning(services))
    readiness.add_warning("trees", lambda: trees_warning(services))


def drain_warning(drain: Drain) -> str:
    """Says that the broker is out of the routes for writing; empty if it is not."""
    return "" if drain.offers_writes else f"{drain.state.value}: new messages go to other brokers"


def store_problem(services: StoreServices) -> str:
    """Why requests cannot be served as they should, or an empty text."""
    store = services.store
    if services.group_commit.failure is not None:
        return f"failed: {services.group_commit.failure}"
    index = store.key_index
    if index is not None and index.create_failures and index.name in store.lagging:
        return f"no index file can be made ({index.create_failures} failures)"
    return ""


def retention_warning(services: StoreServices) -> str:
    """About the disk, or an empty text."""
    counters, removed = services.retention.counters, services.store.early_removal.removed
    texts = [str(removed)] if removed else []
    if counters.disk_full:
        texts.append(f"{counters.disk_used_percent:.1f} % of the disk is used: new messages are refused")
    return "; ".join(texts)


def damage_warning(services: StoreServices) -> str:
    """About places of the log without a good record, met since the start; or an empty text."""
    damage = services.store.damage
    if not damage.ranges.total():
        return ""
    return f"{damage.ranges.total()} damaged places of the log ({damage.bytes.total()} bytes) were met"


def trees_warning(services: StoreServices) -> str:
    """About search trees that are rebuilt, or an empty text."""
    trees = services.store.trees
    if trees is None or not trees.report.quarantined or not trees.lag_bytes:
        return ""
    return f"the search trees are rebuilt ({trees.report.quarantined}); searches scan {trees.lag_bytes} bytes"
