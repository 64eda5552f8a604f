"""The budget of received bytes."""

from __future__ import annotations

import pytest

from trovemq_rpc.budget import BytesBudget

MIB = 1 << 20


class Holder:
    """A connection."""

    def __init__(self) -> None:
        self.held = self.output_held = 0
        self.admissions = 0
        self.resumed = 0

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def on_budget(self) -> None:
        self.resumed += 1


class Admission:
    """Whether a message was admitted."""

    def __init__(self, wanted: bool = True) -> None:
        self.admitted = 0
        self.wanted = wanted

    def __call__(self) -> bool:
        self.admitted += 1
        return self.wanted


def test_giants_leave_a_quarter_for_small_messages() -> None:
    budget = BytesBudget(400 * MIB, 400 * MIB)
    giants = [Admission() for _ in range(3)]
    for giant in giants:
        budget.admit(Holder(), 130 * MIB, giant)
    assert [giant.admitted for giant in giants] == [1, 1, 0]
    small = Admission()
    holder = Holder()
    budget.admit(holder, 4 * MIB, small)
    assert small.admitted
    budget.give_message(holder, 4 * MIB)
    assert budget.held == 260 * MIB


def test_who_waits_is_admitted_in_order_once_there_is_space() -> None:
    budget = BytesBudget(100 * MIB, 100 * MIB)
    first, others = Holder(), [Admission() for _ in range(3)]
    budget.admit(first, 70 * MIB, Admission())
    for other in others:
        budget.admit(Holder(), 35 * MIB, other)
    assert [other.admitted for other in others] == [0, 0, 0]
    budget.give_message(first, 70 * MIB)
    assert [other.admitted for other in others] == [1, 1, 0]
    assert budget.large_held == 70 * MIB


def test_a_message_larger_than_its_connections_share_is_admitted_alone() -> None:
    budget = BytesBudget(256 * MIB, 16 * MIB)
    holder = Holder()
    budget.take(holder, 1_000)
    large, second = Admission(), Admission()
    budget.admit(holder, 64 * MIB, large)
    budget.admit(holder, 5 * MIB, second)
    assert (large.admitted, second.admitted) == (1, 0)
    budget.give_message(holder, 64 * MIB)
    assert second.admitted == 1


def test_an_admission_that_nobody_wants_any_more_is_given_back() -> None:
    budget = BytesBudget(100 * MIB)
    budget.admit(Holder(), 50 * MIB, Admission(wanted=False))
    assert budget.held == budget.large_held == 0


def test_messages_that_nobody_wants_any_more_ended_in_a_recursion() -> None:
    """A connection was lost with a thousand of them waiting: the next bytes that became free raised
    RecursionError, and what was granted until then was never free again.
    """
    budget = BytesBudget(100 * MIB)
    first, gone, last = Holder(), Holder(), Holder()
    budget.admit(first, 70 * MIB, Admission())
    for _ in range(5_000):
        budget.admit(gone, 70 * MIB, Admission(wanted=False))
    wanted = Admission()
    budget.admit(last, 70 * MIB, wanted)
    budget.give_message(first, 70 * MIB)
    assert wanted.admitted == 1
    assert (budget.held, budget.large_held, budget.admissions) == (70 * MIB, 70 * MIB, 1)
    assert (first.held, gone.held, last.held) == (0, 0, 70 * MIB)


def test_windows_are_withheld_until_there_is_space() -> None:
    budget = BytesBudget(10 * MIB, 4 * MIB)
    one, two = Holder(), Holder()
    budget.take(one, 4 * MIB)
    assert budget.exhausted(one)
    assert not budget.exhausted(two)
    budget.take(two, 3 * MIB)
    budget.give(two, 1 * MIB)
    assert one.resumed == 0
    budget.give(one, 1 * MIB)
    assert one.resumed == 1
    budget.give(one, 1 * MIB)
    assert one.resumed == 1


def test_giving_back_more_than_was_taken_is_a_fault() -> None:
    with pytest.raises(AssertionError):
        BytesBudget().give(Holder(), 1)


def test_what_is_ready_takes_of_the_total_and_not_of_its_connections_share() -> None:
    budget = BytesBudget(10 * MIB, 4 * MIB)
    reader, sender = Holder(), Holder()
    budget.set_output(reader, 8 * MIB)
    assert not budget.exhausted(reader)
    budget.take(sender, 2 * MIB)
    assert budget.exhausted(sender)
    budget.set_output(reader, MIB)
    assert (budget.held, budget.output_held, sender.resumed) == (3 * MIB, MIB, 1)
