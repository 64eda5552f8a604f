"""All orders of a few events in a group of three nodes: a search of the states of the shipped cores."""

from __future__ import annotations

from collections import deque

import pytest

from tests.support.trials import SOAK
from tests.unit.replication.small_world import SmallWorld


def search(first: SmallWorld) -> int:
    """How many states there are, each reached by the fewest steps. AssertionError with these steps."""
    seen = {first.key()}
    waiting: deque[tuple[SmallWorld, tuple[object, ...]]] = deque([(first, ())])
    while waiting:
        world, steps = waiting.popleft()
        for step in world.steps():
            later = world.copied()
            try:
                later.take(step)
            except AssertionError as error:
                error.add_note(f"after {(*steps, step)}")
                raise
            key = later.key()
            if key not in seen:
                seen.add(key)
                waiting.append((later, (*steps, step)))
    return len(seen)


CASES = [
    ({"sends": 2, "promotions": 1, "waits": 0, "losses": 0}, 3_000),
    ({"sends": 1, "promotions": 1, "waits": 1, "losses": 0}, 8_000),
    ({"sends": 1, "promotions": 1, "waits": 0, "losses": 1}, 5_000),
]
if SOAK:
    CASES.append(({"sends": 2, "promotions": 1, "waits": 1, "losses": 0}, 10_000))


@pytest.mark.parametrize(("limits", "states_min"), CASES)
def test_no_order_of_events_loses_a_record(limits: dict[str, int], states_min: int) -> None:
    """A first leader, then messages, promotions by any nodes, a leader that waits for longer than a copy may
    lag, and a disk that is replaced; every node follows any node that leads."""
    assert search(SmallWorld(**limits)) >= states_min
