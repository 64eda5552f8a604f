"""The store against a plain list of messages, with restarts, kills and power cuts among the steps, as
Hypothesis chooses them. Longer walks, and those with damage: tests/durability/test_model_walks.py."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.support.indexed_store_machine import IndexedStoreMachine
from tests.support.trials import SOAK

TestStoreMachine = pytest.mark.untraced(pytest.mark.slow(IndexedStoreMachine.TestCase))
TestStoreMachine.settings = settings(
    max_examples=40 if SOAK else 20,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
