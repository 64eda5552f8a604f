"""All orders of a few events in a group of three nodes that elects its leaders at etcd."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.trials import SOAK
from tests.unit.replication.small_election_world import SmallElectionWorld
from tests.unit.replication.test_all_orders import search

CASES: list[tuple[dict[str, Any], int]] = [
    ({"sends": 0, "unlocks": 1, "lost_answers": 0}, 2_500),
]
if SOAK:
    CASES += [
        ({"sends": 1, "unlocks": 1, "lost_answers": 0}, 20_000),
        ({"sends": 0, "unlocks": 1, "lost_answers": 1}, 45_000),
    ]


@pytest.mark.parametrize(("limits", "states_min"), CASES)
def test_no_order_of_events_loses_a_record(limits: dict[str, Any], states_min: int) -> None:
    assert search(SmallElectionWorld(**limits)) >= states_min
