"""Checks the file of the cluster's configuration in a stopped store. Its secrets stay sealed: no key is
needed."""

from __future__ import annotations

from trovemq_broker.cluster_config.table_file import damage_of_copies
from trovemq_store.check.findings import Findings
from trovemq_store.check.store_view import StoreView


def check_config(view: StoreView, findings: Findings) -> None:
    """A damaged copy is a finding, and a note while the other one is whole: a start reads that."""
    damaged, other_is_whole = damage_of_copies(view.files)
    for path, what in damaged.items():
        findings.add(path, 0, what, note=other_is_whole)
