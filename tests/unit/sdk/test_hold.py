"""How many messages a subscription receives ahead: as its program works, by the clock of a made-up loop."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trovemq._consume.hold import HOLD_MAX, WORK_S, YIELD_S, Hold


class Program:
    """A program of some workers, each of which takes `unit` messages and works on them together. There is
    always a message, unless `pause` is called."""

    def __init__(self, hold: Hold, workers: int = 1, unit: int = 1) -> None:
        self.hold = hold
        hold.workers, hold.unit = workers, unit
        self.now, self.taken = 100.0, 0
        self.counts: list[int] = []
        hold.note_waiting(self.now, 0)
        hold.note_working(self.now, 0)
        self.taken = workers * unit

    def works(self, seconds: float, times: int = 1) -> int:
        """Every worker works for the same time, `times` times. The hold afterwards."""
        for _ in range(times):
            self.now += seconds
            self.taken += self.hold.workers * self.hold.unit
            self.looks()
        return self.counts[-1]

    def looks(self) -> None:
        self.counts.append(self.hold.count(self.now, self.taken, 5, ordered=False))

    def pause(self, seconds: float) -> None:
        """There is no message for that time; then a worker takes the next one."""
        self.hold.note_waiting(self.now, self.taken)
        self.now += seconds
        self.hold.note_working(self.now, self.taken)
        self.taken += self.hold.workers * self.hold.unit


def test_a_slow_program_holds_two_messages_for_each_that_it_works_on() -> None:
    assert Program(Hold()).works(0.5, 20) == 2
    assert Program(Hold(), workers=16).works(0.5, 20) == 32
    assert Program(Hold(), workers=16, unit=4).works(5.0, 20) == 128


def test_a_fast_program_holds_the_most_within_a_few_hundred_messages() -> None:
    program = Program(Hold())
    program.looks()
    assert program.works(20e-6, 200) == HOLD_MAX
    assert list(dict.fromkeys(program.counts)) == [2, 8, 32, 128, HOLD_MAX]
    assert Program(Hold(), workers=16).works(1e-3, 20) == HOLD_MAX


def test_the_first_messages_that_were_taken_count_as_no_work() -> None:
    for workers, unit in ((1, 1), (16, 1), (1, 50), (4, 4)):
        program = Program(Hold(), workers, unit)
        program.now += 1e-6
        program.looks()
        assert program.counts == [2 * workers * unit]


@pytest.mark.parametrize(("work_s", "expected"), [(0.001, 250), (0.01, 25), (0.05, 5)])
def test_the_hold_is_250_ms_of_work(work_s: float, expected: int) -> None:
    count = Program(Hold()).works(work_s, 2_000)
    assert expected - 1 <= count <= expected + 1
    assert count * work_s <= WORK_S * 1.2


def test_a_program_that_becomes_slow_holds_little_after_two_messages() -> None:
    program = Program(Hold())
    assert program.works(20e-6, 10_000) == HOLD_MAX
    assert program.works(0.5, 2) <= 4
    assert program.works(0.5) == 2
    assert program.works(20e-6, 10_000) == HOLD_MAX


def test_a_program_that_works_on_one_message_for_long_is_noticed_meanwhile() -> None:
    program = Program(Hold())
    program.works(1e-4, 10_000)
    assert program.hold.looked_at_again(program.now, 200) == WORK_S
    for _ in range(4):
        program.now += WORK_S
        program.looks()
    assert program.counts[-1] <= 4
    assert program.hold.looked_at_again(program.now, 2) is None, "there is nothing to return"


def test_an_empty_queue_is_not_slow_work() -> None:
    program = Program(Hold())
    program.works(20e-6, 1_000)
    for _ in range(50):
        program.pause(3.0)
        program.now += 20e-6
        program.looks()
    assert program.counts[-1] == HOLD_MAX


def test_messages_that_trickle_in_are_measured_all_the_same() -> None:
    slow, fast = Program(Hold()), Program(Hold())
    fast.works(20e-6, 1_000)
    for _ in range(3):
        slow.pause(1.0)
        fast.pause(1.0)
        slow.now += 0.5
        fast.now += 0.5
        slow.looks()
        fast.looks()
    assert (slow.counts[-1], fast.counts[-1] <= 4) == (2, True)


def test_messages_that_come_one_by_one_count_as_finished() -> None:
    program = Program(Hold())
    for _ in range(400):
        program.now += 20e-6
        program.pause(1.0)
        program.looks()
    assert program.counts[-1] == HOLD_MAX


def test_the_hold_does_not_grow_without_further_work() -> None:
    program = Program(Hold())
    program.works(20e-6)
    for _ in range(10):
        program.looks()
    assert set(program.counts) == {8}


def test_the_programs_own_number_is_kept() -> None:
    for count_max in (1, 7, 1_000):
        program = Program(Hold(count_max), workers=4)
        program.works(20e-6, 100)
        program.works(0.5, 10)
        assert set(program.counts) == {count_max}
        assert program.hold.looked_at_again(program.now, 1_000) is None


def test_after_another_member_joined_the_hold_is_small_for_a_moment() -> None:
    for own in (None, 500):
        program = Program(Hold(own), workers=3)
        program.works(20e-6, 1_000)
        before = program.counts[-1]
        program.hold.begin_to_yield(program.now, 0)
        program.looks()
        assert program.counts[-1] == 3
        assert program.hold.looked_at_again(program.now, 0) == pytest.approx(YIELD_S)
        program.now += YIELD_S + 1e-6
        assert not program.hold.yields(program.now)
        program.taken += 1_000_000
        program.looks()
        assert program.counts[-1] == before


@pytest.mark.parametrize(
    ("own", "waiting", "kept"),
    [(None, 1, 1), (None, 2, 1), (None, 5, 3), (None, 200, 4), (500, 1, 1), (500, 400, 200), (500, 0, 4)],
)
def test_half_of_the_waiting_messages_are_kept_at_most(own: int | None, waiting: int, kept: int) -> None:
    hold = Hold(own)
    hold.workers = 4
    hold.count(100.0, 0, waiting, ordered=False)
    hold.begin_to_yield(100.0, waiting)
    assert hold.count(100.0, 0, waiting, ordered=False) == kept


def test_a_member_that_joined_at_eight_brokers_got_all_but_a_few_messages() -> None:
    """Each broker sent its notice, and each notice halved the rest of the one before it."""
    hold, waiting = Hold(800), 800
    for number in range(8):
        now = 100 + number / 100
        hold.begin_to_yield(now, waiting)
        waiting = min(waiting, hold.count(now, 0, waiting, ordered=False))
    assert waiting == 400
    assert hold.yields(now + YIELD_S * 0.9)
    hold.begin_to_yield(now + 1, 100)
    assert hold.count(now + 1, 0, 100, ordered=False) == 50


def test_a_list_for_one_worker_is_kept_when_another_member_joins() -> None:
    hold = Hold()
    hold.workers, hold.unit = 16, 10
    assert (hold.least, hold.kept) == (HOLD_MAX, 16)
    hold.unit = 100
    assert (hold.least, hold.kept) == (HOLD_MAX, 100)
    assert Hold(8).kept == 1


def test_an_orderly_group_that_waits_for_one_lane_holds_more() -> None:
    hold, now = Hold(), 100.0
    hold.note_waiting(now, 0)
    counts = []
    for _ in range(60):
        counts.append(hold.count(now, 0, 5, ordered=True))  # all of them wait for one with the program
        now += 0.01
    assert counts[0] == 2
    assert counts == sorted(counts)
    assert counts[-1] == HOLD_MAX
    hold.note_working(now, 0)
    for taken in range(200):  # now they are of many lanes, and the work is slow
        now += 0.5
        counts.append(hold.count(now, taken, 5, ordered=True))
    assert counts[-1] == 2
    assert all(later >= earlier * 0.7 - 1 for earlier, later in pairwise(counts[60:]))


def test_an_orderly_group_that_has_nothing_to_wait_for_does_not_grow() -> None:
    hold, now = Hold(), 100.0
    hold.note_waiting(now, 0)
    for _ in range(60):
        assert hold.count(now, 0, 0, ordered=True) == 2
        now += 0.01
