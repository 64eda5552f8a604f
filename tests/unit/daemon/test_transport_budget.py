"""Requests and replies on our own transport have one budget."""

from __future__ import annotations

from trovemq_daemon.reply_budget import ReplyBudget, ReplyLimits
from trovemq_daemon.transport_budget import TransportBudget

MIB = 1 << 20
LIMITS = ReplyLimits(total_max=12 * MIB, connection_max=4 * MIB)


class Connection:
    def __init__(self, peer: str) -> None:
        self.held = self.output_held = self.admissions = 0
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def on_budget(self) -> None:
        pass


def test_what_the_transport_has_ready_counts_as_replies() -> None:
    replies = ReplyBudget(LIMITS, transport_counts=True)
    budget = TransportBudget(replies.budget, MIB)
    a, b = Connection("a"), Connection("b")
    assert replies.claim("a", 4 * MIB) is None
    budget.set_output(a, 4 * MIB)
    assert (replies.has_space("a"), replies.has_space("b")) == (False, True)
    budget.set_output(b, 8 * MIB)
    assert not replies.has_space("c")
    assert budget.held == replies.budget.used == 12 * MIB
    budget.set_output(a, 0)
    assert replies.has_space("c")
    budget.set_output(b, 0)
    assert (budget.held, replies.budget.used, replies.budget.peer_count) == (0, 0, 0)


def test_replies_leave_a_quarter_of_the_whole_to_requests() -> None:
    replies = ReplyBudget(LIMITS, transport_counts=True)
    budget = TransportBudget(replies.budget, MIB)
    reader, sender = Connection("a"), Connection("b")
    budget.set_output(reader, LIMITS.total_max)
    assert not budget.exhausted(sender)
    budget.take(sender, 3 * MIB)
    assert budget.request_bytes == 3 * MIB


def test_one_request_of_the_largest_size_always_has_space() -> None:
    budget = TransportBudget(ReplyBudget(LIMITS).budget, 130 * MIB)
    assert budget.message_size_max >= 130 * MIB
