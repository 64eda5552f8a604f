"""The reasons for which `/readyz` reports a store as not ready, and its warnings.

With a reason the broker is not ready; a warning needs attention, but requests are served. Each is a few
words; docs/how-to/run-in-production.md describes what to do.
"""

from __future__ import annotations

from trovemq_broker.admin.drain import Drain
from trovemq_broker.cluster.registration import Registrations
from trovemq_broker.daemon.background import StoreTasks
from trovemq_broker.maintenance.clock_task import clock_warning
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_daemon.ops_http import Readiness


def add_store_reasons(readiness: Readiness, core: BrokerCore, tasks: StoreTasks) -> None:
    """Adds the check `store`, and the warnings about retention, damage, trees, limits and the clock."""
    readiness.add("store", lambda: store_problem(core))
    readiness.add_warning("retention", lambda: retention_warning(core, tasks))
    readiness.add_warning("damage", lambda: damage_warning(core))
    readiness.add_warning("trees", lambda: trees_warning(core))
    readiness.add_warning("topics", core.store.topics.limit_warning)
    readiness.add_warning("groups", core.model.groups.limit_warning)
    readiness.add_warning("clock", lambda: clock_warning(core.store, tasks.clock_trust))


def add_registration_reasons(readiness: Readiness, registrations: Registrations) -> None:
    """Adds the check `nameservers`, and the warnings about registrations."""
    readiness.add("nameservers", registrations.problem)
    readiness.add_warning("nameservers", registrations.warning)
    readiness.add_warning("topics_left_out", lambda: "; ".join(registrations.leaving_out()))
    readiness.add_warning("nameserver_log_in", registrations.log_in_warning)
    readiness.add_warning("clock_difference", registrations.clock_warning)


def drain_warning(drain: Drain) -> str:
    """A warning that routes do not offer the broker for writing; empty if they do."""
    return "" if drain.offers_writes else f"{drain.state.value}: new messages go to other brokers"


def store_problem(core: BrokerCore) -> str:
    """The reason why requests cannot be served as they should, or an empty text."""
    store = core.store
    if core.group_commit.failure is not None:
        return f"failed: {core.group_commit.failure}"
    index = store.key_index
    if index is not None and index.create_failures and index.name in store.lagging:
        return f"no index file can be made ({index.create_failures} failures): {index.create_failure}"
    return ""


def retention_warning(core: BrokerCore, tasks: StoreTasks) -> str:
    """A warning about the disk, or an empty text."""
    counters, removed = tasks.retention.counters, core.store.early_removal.removed
    texts = [str(removed)] if removed else []
    if counters.disk_full:
        texts.append(f"{counters.disk_used_percent:.1f} % of the disk is used: new messages are refused")
    elif core.store.reserve.is_full():
        texts.append("the disk has no space for a new segment: new messages are refused")
    return "; ".join(texts)


def damage_warning(core: BrokerCore) -> str:
    """A warning about damaged places of the log that were found since the start, or an empty text."""
    places, size = core.store.damage.present
    if not places:
        return ""
    return f"{places} damaged places of the log ({size} bytes) were met"


def trees_warning(core: BrokerCore) -> str:
    """A warning about search trees that are being rebuilt, or an empty text."""
    trees = core.store.trees
    if trees is None or not trees.report.quarantined or not trees.lag_bytes:
        return ""
    return f"the search trees are rebuilt ({trees.report.quarantined}); searches scan {trees.lag_bytes} bytes"
