"""Clocks that step by -2 to +25 years at any moment: look-ups, windows, timers and removal by age are
compared with a model in real time (stepping_clock.py)."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Final

import pytest

from tests.support.deduplicated import TOPIC
from tests.support.searching import answered
from tests.support.trials import Trials
from tests.world.stepping_clock import SETTINGS, TICK_MS, WINDOW_MS, World
from trovemq_broker.maintenance.clock_task import clock_warning
from trovemq_broker.query.key_query import TIME_MAX, KeyQuery, KeyType
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.query.search.conditions import Has, SearchQuery
from trovemq_daemon.clocks import SETTLE_MS, SettledClock
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId
from trovemq_store.engine.clock_trust import TRUSTED_AFTER_MS
from trovemq_store.engine.store_time import AHEAD_FOR_MS, AHEAD_MAX_MS
from trovemq_store.index.index_file import read_header
from trovemq_store.index.trees.layout import UNIQUE_KEY
from trovemq_store.log.retention import DiskUse, RetentionPolicy, decide
from trovemq_store.log.segment_age import closed_segments

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
YEAR_MS: Final = 365 * DAY_MS
OFFS: Final = (
    -2 * YEAR_MS,
    -DAY_MS,
    -5 * MINUTE_MS,
    -SECOND_MS,
    5 * MINUTE_MS,
    2 * HOUR_MS,
    DAY_MS,
    25 * YEAR_MS,
)
KEPT_MS: Final = 6 * HOUR_MS
POLICY: Final = RetentionPolicy(hours=frozenset(range(24)), reserved_ms=KEPT_MS, files_max=1_000)


def lower(world: World, timestamp: int) -> int:
    return search_offset(world.store, TOPIC, QueueId(0), EpochMs(timestamp))


def upper(world: World, timestamp: int) -> int:
    return search_offset(world.store, TOPIC, QueueId(0), EpochMs(timestamp), upper=True)


def check_times(world: World) -> None:
    """Look-ups by time answer by each record's own time; an offset for a time skips no record of it."""
    times = [one.store_ms for one in world.sent]
    asked = {time + by for time in random.Random(len(times)).choices(times, k=5) for by in (-1, 0, 1)}
    for at in sorted({*asked, world.right_ms, world.now_ms}):
        first = next((offset for offset, time in enumerate(times) if time >= at), len(times))
        last = max((offset for offset, time in enumerate(times) if time <= at), default=0)
        assert lower(world, at) == first
        assert upper(world, at) == last
    bounds = sorted(asked)
    for begin, end in [*pairwise(bounds[::4]), (bounds[0], TIME_MAX), (world.right_ms - HOUR_MS, TIME_MAX)]:
        wanted = sorted(
            (one.physical_offset for one in world.sent if begin <= one.store_ms <= end), reverse=True
        )
        query = SearchQuery(TOPIC, Has(UNIQUE_KEY, b"m", is_prefix=True), EpochMs(begin), EpochMs(end))
        assert answered(world.store, query) == wanted
        for one in random.Random(begin).choices(world.sent, k=2):
            by_key = KeyQuery(TOPIC, one.name, KeyType.UNIQUE, EpochMs(begin), EpochMs(end))
            pages = query_pages(world.store, by_key)
            found = [at for page in pages for at in page.physical_offsets]
            assert (one.physical_offset in found) == (begin <= one.store_ms <= end)


def check_index_files(world: World) -> None:
    """The times of an index file rise: its seconds are those of its records."""
    assert world.store.key_index is not None
    for name in world.store.key_index.file_names:
        begin, end, _, _ = read_header(world.files, f"index/{name}")
        assert 0 <= begin <= end


def removable(world: World) -> PhysicalOffset:
    """How far removal by age would go now."""
    closed = world.store.closed_segments()
    run = world.store.time_runs.run_at(PhysicalOffset(closed[0].end - 1)) if closed else None
    decision = decide(
        closed_segments(world.files, closed),
        POLICY,
        DiskUse(1_000, 900),
        min_offset=LOG_ORIGIN,
        hour=4,
        now_ms=world.trust.trusted_ms(KEPT_MS),
        before_ms=run.before_ms if run is not None and run.steps_back else 0,
    )
    return decision.end


def check_removal(world: World) -> None:
    """Nothing is removed early by a clock that is right, or was set less than an hour ago."""
    end = removable(world)
    if end and (world.off_ms == 0 or world.boot_ms - world.stepped_boot_ms < TRUSTED_AFTER_MS):
        assert world.boot_ms - world.stored_boot_ms(end) >= KEPT_MS
    if world.boot_ms - world.stepped_boot_ms < TRUSTED_AFTER_MS and world.stepped_boot_ms > 0:
        assert end == 0, "an hour after a step nothing is removed"


def check_duplicate(world: World, chance: random.Random) -> None:
    """A message is sent again: its window is real time."""
    one = chance.choice(world.sent[-3:])
    latest = max(sent.boot_ms for sent in world.sent if sent.name == one.name)
    age_ms = world.boot_ms - latest
    is_duplicate = bool(world.send(one.name).duplicates)
    if age_ms > WINDOW_MS + TICK_MS and world.boot_ms - world.opened_boot_ms > WINDOW_MS + TICK_MS:
        assert not is_duplicate, "the window is closed"
    if age_ms < WINDOW_MS and latest > world.opened_boot_ms:
        assert is_duplicate, "the window is open"


def run_world(chance: random.Random, step_count: int) -> World:
    world = World()
    for number in range(step_count):
        if chance.random() < 0.25:
            world.set_clock(0 if world.off_ms and chance.random() < 0.7 else chance.choice(OFFS))
        for _ in range(chance.randint(1, 4)):
            world.send(f"m{number}.{len(world.sent)}", sync=chance.random() < 0.6)
            world.check_checkpoint()
        ms = chance.choice((100, 900, 1_500, 5_000, 70_000, 130_000))
        world.pass_time(HOUR_MS if chance.random() < 0.05 else ms)
        check_duplicate(world, chance)
        world.check_checkpoint()
        if chance.random() < 0.3:
            world.store.flush_projections(index=True)
            world.check_checkpoint()
        if chance.random() < 0.1:
            world.sync()
            world.restart(chance.choice(("stopped", "killed", "rebuilt")))
        check_removal(world)
    world.sync()
    world.catch_up()
    check_times(world)
    check_index_files(world)
    for how in ("killed", "rebuilt"):
        world.restart(how)
        check_times(world)
    world.store.close(world.now_ms)
    return world


@pytest.mark.slow
def test_look_ups_windows_and_removal_under_a_clock_that_steps(trials: Trials) -> None:
    for number in trials.numbers(200, default=6):
        with trials.one(number) as chance:
            run_world(chance, 40)
        trials.count("R13", "worlds whose clock steps")


def test_a_clock_two_hours_ahead_for_one_send_hid_later_messages() -> None:
    world = World()
    world.send("m0")
    world.set_clock(2 * HOUR_MS)
    world.send("m1")
    world.set_clock(0)
    world.pass_time(3_000)
    assert not world.send("m1").duplicates, "a window of 2 s is closed after 2 s"
    assert "in the future" in clock_warning(world.store, world.trust)
    world.pass_time(AHEAD_FOR_MS)
    asked_ms = world.right_ms
    world.send("m2")
    assert world.sent[-1].store_ms == asked_ms, "store time is the clock's again"
    assert lower(world, asked_ms) == 1, "nothing is skipped"
    query = SearchQuery(TOPIC, Has(UNIQUE_KEY, b"m2"), EpochMs(asked_ms), EpochMs(asked_ms + 1))
    assert answered(world.store, query) == [world.sent[-1].physical_offset]
    assert world.store.key_index is not None
    assert len(world.store.key_index.file_names) == 2, "an index file ends where times step back"
    world.restart("stopped")
    check_times(world)
    assert "chrony" in clock_warning(world.store, world.trust), "also at a start on such a store"
    world.pass_time(3 * HOUR_MS)
    assert clock_warning(world.store, world.trust) == ""


def test_a_clock_ahead_by_years_removed_young_segments() -> None:
    world = World()
    for number in range(100):
        world.send(f"m{number}")
        world.pass_time(SECOND_MS)
    world.store.flush_projections(index=True)
    assert len(world.store.closed_segments()) > 1
    world.set_clock(25 * YEAR_MS)
    for _ in range(59):
        world.pass_time(MINUTE_MS)
        assert removable(world) == 0
    world.set_clock(0)
    world.pass_time(2 * HOUR_MS)
    assert removable(world) == 0
    world.pass_time(KEPT_MS)
    assert removable(world) > 0


def test_a_broker_that_restarts_every_50_minutes_still_removes_what_is_old() -> None:
    world = World()
    for number in range(100):
        world.send(f"m{number}")
    world.store.flush_projections(index=True)
    for number in range(10):
        world.pass_time(50 * MINUTE_MS)
        world.restart("killed" if number % 2 else "stopped")
    world.store.flush_projections(index=True)
    assert removable(world) > 0


def test_segments_of_a_clock_two_years_back_were_removed_early() -> None:
    """Two years behind for three hours: the segments of that time count as stored when the next ones were."""
    world = World()
    for number in range(60):
        world.send(f"m{number}")
    world.set_clock(-2 * YEAR_MS)
    for number in range(90):
        world.pass_time(2 * MINUTE_MS)
        world.send(f"b{number}")
    world.set_clock(0)
    for number in range(60):
        world.send(f"n{number}")
    world.store.flush_projections(index=True)
    assert world.steps == 1
    for _ in range(20):
        world.pass_time(30 * MINUTE_MS)
        check_removal(world)
    assert removable(world) > 0


@pytest.mark.parametrize("off_ms", OFFS)
def test_a_moment_of_a_wrong_clock_does_not_reach_timers_and_leases(off_ms: int) -> None:
    real = boot = 1_700_000_000_000
    state = {"real": real, "off": 0}
    clock = SettledClock(lambda: state["real"] + state["off"], lambda: state["real"] - boot)
    assert clock() == real
    state["off"] = off_ms
    followed = abs(off_ms) <= SECOND_MS
    for _ in range(SETTLE_MS // 500):
        assert clock() == state["real"] + (off_ms if followed else 0)
        state["real"] += 500
    state["off"] = 0
    assert clock() == state["real"], "it is right again, and nothing was early"
    state["off"] = off_ms
    for _ in range(SETTLE_MS // 500 + 1):
        clock()
        state["real"] += 500
    assert clock() == state["real"] + off_ms, "the new time has stood for a minute"


@pytest.mark.parametrize("off_ms", OFFS)
def test_timers_in_real_time(off_ms: int) -> None:
    """Delayed messages are due by the settled clock: at any moment of a wrong clock none is early or late."""
    world = World()
    due = [world.right_ms + at * 7_000 for at in range(40)]
    arrived: dict[int, int] = {}
    for second in range(300):
        world.set_clock(off_ms if 100 <= second < 150 else 0)
        world.pass_time(SECOND_MS)
        now_ms = world.settled()
        for one in due:
            if one <= now_ms and one not in arrived:
                arrived[one] = world.right_ms
    assert all(abs(arrived[one] - one) <= 2 * SECOND_MS for one in due)


def test_store_times_step_back_only_after_a_minute() -> None:
    world = World()
    world.set_clock(AHEAD_MAX_MS + 10_000)
    world.send("m0")
    world.set_clock(0)
    world.pass_time(10_000 - TICK_MS)
    world.set_clock(-1)
    world.pass_time(AHEAD_FOR_MS)
    assert world.steps == 0, "the clock came within a minute of it"
    assert SETTINGS.flush_mode == "sync"
