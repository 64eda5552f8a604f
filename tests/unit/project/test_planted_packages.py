"""Every package of the product has a planted fault that its tests find (tests/durability/planted.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.durability.old_faults import FAULTS
from tests.durability.package_faults import PACKAGE_FAULTS
from tests.durability.planted import ROOT
from tests.durability.test_planted_bugs import BUGS

ROOTS: Final = (
    "broker/trovemq_broker",
    "clients/python/trovemq",
    "console/trovemq_console",
    "daemon/trovemq_daemon",
    "nameserver/trovemq_nameserver",
    "pipeline/trovemq_spark",
    "proto/trovemq_proto",
    "rpc/trovemq_rpc",
    "store/trovemq_store",
)
WITHOUT: Final = {
    "broker/trovemq_broker": "the values of settings, and the module that starts the daemon",
    "clients/python/trovemq/sync": "a fault between its two threads is a program that hangs",
    "rpc/trovemq_rpc/testing": "the network in memory, for tests",
    "store/trovemq_store": "the values of settings",
}
"""Packages without a planted fault, and why."""


def packages() -> set[str]:
    """The directories that have their own modules, but for generated code."""
    found = set()
    for root in ROOTS:
        for path in (ROOT / root).rglob("*.py"):
            if path.name != "__init__.py" and "_pb2" not in path.name:
                found.add(str(path.parent.relative_to(ROOT)))
    return found


def planted() -> set[str]:
    return {str(Path(fault.path).parent) for fault in (*BUGS, *FAULTS, *PACKAGE_FAULTS)}


def test_every_package_has_a_planted_fault() -> None:
    assert sorted(packages() - planted() - WITHOUT.keys()) == []


def test_the_packages_without_one_are_there_and_have_none() -> None:
    assert sorted(WITHOUT.keys() - (packages() - planted())) == []
