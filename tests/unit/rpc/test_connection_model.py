"""Two cores joined in memory under random calls: nothing is lost, doubled or reordered; windows agree at
the end.
"""

import pytest

from tests.support.trials import SOAK, Trials
from tests.unit.rpc.connection_pair import Pair
from trovemq_rpc.http2.limits import Limits
from trovemq_rpc.testing.pipe import Faults

SEEDS = 2_000 if SOAK else 30
SMALL = Limits(
    stream_window=20_000, connection_window=100_000, frame_size_max=16_384, concurrent_streams_max=5
)
DEFAULT = Limits()

ACTIONS = {
    Pair.open: 3, Pair.call: 3, Pair.answer: 3, Pair.head: 4, Pair.data: 12, Pair.trailers: 2, Pair.reset: 1,
    Pair.ping: 1, Pair.acknowledge: 6, Pair.block_transport: 1, Pair.deliver: 30,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits", [(DEFAULT, DEFAULT), (SMALL, SMALL), (SMALL, DEFAULT)], ids=["default", "small", "mixed"]
)
def test_random_calls_lose_double_and_reorder_nothing(limits: tuple[Limits, Limits], trials: Trials) -> None:
    for seed in range(SEEDS):
        pair = Pair(seed, *limits, Faults(piece_size_max=1 << 17))
        actions = pair.random.choices(list(ACTIONS), list(ACTIONS.values()), k=300)
        try:
            for action in actions:
                action(pair)
            pair.settle()
            pair.check()
        except AssertionError as e:
            raise AssertionError(f"seed {seed}: {e}") from e
    trials.count("rpc", "random streams between two cores, by seed", SEEDS)
