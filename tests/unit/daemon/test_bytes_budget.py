"""The budget of bytes against its promises, in any order of claims, waits and releases."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from trovemq_daemon.bytes_budget import BytesBudget, Claim, PendingClaim

TOTAL, PEER_MAX, SMALL = 100, 40, 10
PEERS = st.sampled_from("abc")
SIZES = st.integers(1, 75)


def test_what_is_claimed_is_counted_until_it_is_released() -> None:
    budget = BytesBudget(TOTAL, PEER_MAX, SMALL)
    claim = budget.take("a", 30)
    assert claim is not None
    assert budget.take("a", 20) is None, "its own limit"
    assert (budget.used, budget.of_peer("a"), budget.peer_count) == (30, 30, 1)
    budget.resize(claim, 5)
    assert budget.used == 5
    budget.release(claim)
    budget.release(claim)
    assert (budget.used, budget.of_peer("a"), budget.peer_count, budget.used_max) == (0, 0, 0, 30)


def test_two_large_messages_could_wait_for_each_other_for_ever() -> None:
    """Each is admitted with all that it announced, or waits without holding anything."""
    budget = BytesBudget(TOTAL, PEER_MAX, SMALL)
    got: list[Claim] = []
    first = budget.take("a", 60)
    assert first is not None
    assert budget.take("b", 60) is None
    budget.wait("b", 60, got.append)
    assert budget.of_peer("b") == 0
    budget.release(first)
    assert [claim.peer for claim in got] == ["b"]


def test_thousands_who_gave_up_waiting_ended_in_a_recursion() -> None:
    """Each is granted its space when there is some, releases it at once, and so makes space for the next."""
    budget = BytesBudget(TOTAL, PEER_MAX, SMALL)
    got: list[Claim] = []
    first = budget.force("a", TOTAL)
    for number in range(3_000):
        budget.wait(f"b{number}", TOTAL // 2, budget.release)
    budget.wait("c", TOTAL // 2, got.append)
    budget.release(first)
    assert [claim.peer for claim in got] == ["c"]
    assert (budget.waiting_count, budget.used) == (0, TOTAL // 2)


def test_small_messages_pass_while_large_ones_fill_their_share() -> None:
    budget = BytesBudget(TOTAL, PEER_MAX, SMALL)
    assert budget.take("a", 75) is not None
    assert budget.take("b", 11) is None
    assert budget.take("c", 10) is not None
    assert not budget.can_ever_fit(76)
    assert budget.can_ever_fit(75)


def test_nobody_waits_for_another_peers_own_limit() -> None:
    budget = BytesBudget(TOTAL, PEER_MAX, SMALL)
    got: list[Claim] = []
    budget.force("a", 35)
    budget.wait("a", 10, got.append)
    assert budget.take("b", 10) is not None
    assert got == []


def test_who_gives_up_waiting_lets_the_next_one_pass() -> None:
    budget = BytesBudget(TOTAL, TOTAL, SMALL)
    got: list[Claim] = []
    held = budget.force("a", 40)
    first = budget.wait("b", 60, got.append)
    assert [claim.peer for claim in got] == []
    assert budget.take("c", 20) is None, "it came later"
    budget.cancel(first)
    assert budget.take("c", 20) is not None
    budget.cancel(first)
    budget.release(held)
    assert budget.waiting_count == 0


class Walk(RuleBasedStateMachine):
    """Against plain sums."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.budget = BytesBudget(TOTAL, PEER_MAX, SMALL)
        self.held: dict[Claim, None] = {}
        self.waiting: list[PendingClaim] = []
        self.forced = False

    def granted(self, claim: Claim) -> None:
        self.held[claim] = None

    @rule(peer=PEERS, size=SIZES)
    def take(self, peer: str, size: int) -> None:
        claim = self.budget.take(peer, size)
        if claim is not None:
            self.granted(claim)

    @rule(peer=PEERS, size=SIZES)
    def wait(self, peer: str, size: int) -> None:
        self.waiting.append(self.budget.wait(peer, size, self.granted))

    @rule(peer=PEERS, size=SIZES)
    def force(self, peer: str, size: int) -> None:
        self.granted(self.budget.force(peer, size))
        self.forced = True

    @rule(index=st.integers(0, 50))
    def release(self, index: int) -> None:
        if self.held:
            claim = list(self.held)[index % len(self.held)]
            del self.held[claim]
            self.budget.release(claim)

    @rule(index=st.integers(0, 50))
    def cancel(self, index: int) -> None:
        if self.waiting:
            self.budget.cancel(self.waiting.pop(index % len(self.waiting)))

    @invariant()
    def sums_agree(self) -> None:
        by_peer = Counter[str]()
        for claim in self.held:
            by_peer[claim.peer] += claim.size
        assert self.budget.used == by_peer.total()
        assert all(self.budget.of_peer(peer) == by_peer[peer] for peer in "abc")
        if not self.forced:
            assert self.budget.used <= TOTAL
            assert sum(claim.size for claim in self.held if claim.size > SMALL) <= 75

    @invariant()
    def no_claim_waits_for_nothing(self) -> None:
        if not self.held:
            assert self.budget.waiting_count == 0

    def teardown(self) -> None:
        while self.held:
            self.release(0)
        assert (self.budget.used, self.budget.waiting_count) == (0, 0)


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
