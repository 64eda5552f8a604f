"""A model of RocketMQ reads our export; RocketMQ's files are imported."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS
from tests.support.golden import load_manifest, settings_of, unpack
from tests.unit.timers import rocketmq
from tests.unit.timers.engine import SETTINGS, Broker
from tests.unit.timers.rocketmq import RocketMqTimers, pending_levels
from trovemq_broker.timers import rocketmq_files, rocketmq_transfer
from trovemq_broker.timers.rocketmq_files import (
    DelayOffsets,
    TimerCheck,
    load_check,
    load_units,
    log_file_size,
    log_files,
    save_check,
)
from trovemq_broker.timers.timers import SCHEDULE_TOPIC, WHEEL_TOPIC
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem

DAY_MS = 86_400_000
LOG_FILE_SIZE = 5 * 52 + 30


def with_small_log(files: MemoryFileSystem) -> MemoryFileSystem:
    """As if RocketMQ had been there with small timer log files."""
    files.create("timerlog/00000000000000000000", LOG_FILE_SIZE, preallocate=False)
    return files


def make_wheel_small(patch: pytest.MonkeyPatch) -> None:
    """Less to write; still more than the two days that are ever used of it."""
    patch.setattr(rocketmq_files, "WHEEL_SLOTS", 180_000)
    patch.setattr(rocketmq, "SLOTS", 180_000)


delays = st.one_of(
    st.integers(1, 5_000),
    st.integers(1, 40 * DAY_MS),
    st.sampled_from(
        [1, 1_000, 2 * DAY_MS - 1, 2 * DAY_MS, 2 * DAY_MS + 1, 2 * DAY_MS + DAY_MS * 2 // 3, 15 * DAY_MS]
    ),
)


@given(
    delays=st.lists(delays, max_size=14), wait_ms=st.integers(0, 4_000), recalled=st.sets(st.integers(0, 13))
)
@example(delays=[20 * DAY_MS, 1_000], wait_ms=1_500, recalled=set())
@example(delays=[1_000, 1_000, 3_000], wait_ms=1_500, recalled={2})
@settings(max_examples=10, deadline=None)
def test_rocketmq_continues_where_we_stopped(delays: list[int], wait_ms: int, recalled: set[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_wheel_small(patch)
        check_that_rocketmq_goes_on(delays, wait_ms, recalled)


def check_that_rocketmq_goes_on(delays: list[int], wait_ms: int, recalled: set[int]) -> None:
    broker = Broker(with_small_log(MemoryFileSystem()))
    for number, delay_ms in enumerate(delays):
        broker.schedule(b"%d" % number, NOW_MS + delay_ms, unique_key=f"K{number}")
    for number in recalled & set(range(len(delays))):
        broker.timers.recall("orders", NOW_MS + delays[number], f"K{number}", NOW_MS)
    now_ms = NOW_MS + wait_ms
    broker.deliver(now_ms)
    waiting: dict[int, int] = {
        timer.queue_offset: timer.deliver_ms for timer in broker.timers.pending("orders")
    }
    broker.timers.export_to_rocketmq(broker.files, now_ms)

    found = RocketMqTimers(broker.store, broker.files, now_ms).run(now_ms, now_ms + 60 * DAY_MS)
    assert sorted(offset for offset, _ in found) == sorted(waiting), "each once, and nothing else"
    for offset, when_ms in found:
        assert waiting[offset] <= when_ms <= max(waiting[offset], now_ms) + 2_000

    positions = {
        pending.queue_offset
        for pending in Broker(broker.kill(), import_from_rocketmq=True).timers.pending("orders")
    }
    assert positions == set(waiting), "and so do we, as if RocketMQ had written the files"


def test_a_hand_back_that_stops_anywhere_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel_small(monkeypatch)
    broker = Broker(with_small_log(MemoryFileSystem()))
    for number in range(12):
        broker.schedule(b"%d" % number, NOW_MS + 1_000 * (1 + number % 4))
    broker.deliver(NOW_MS + 1_000)
    broker.timers.export_to_rocketmq(broker.files, NOW_MS + 1_000)
    before = broker.kill()
    broker.deliver(NOW_MS + 2_500)
    waiting = {timer.queue_offset for timer in broker.timers.pending("orders")}
    assert len(waiting) == 6
    for step in range(1, 60):
        calls = 0

        def decide(operation: str, path: str, step: int = step) -> int | None:
            nonlocal calls
            calls += operation not in ("read_bytes", "list", "open")
            return errno.EIO if calls == step else None

        files = before.after_process_kill()
        complete = False
        try:
            broker.timers.export_to_rocketmq(FaultyFileSystem(files, decide), NOW_MS + 2_500)
            complete = True
        except StorageError:
            assert calls == step
        found = RocketMqTimers(broker.store, files, NOW_MS).run(NOW_MS, NOW_MS + DAY_MS)
        assert waiting <= {offset for offset, _ in found}, f"stopped at step {step}"
        assert log_file_size(files, 1) == LOG_FILE_SIZE, "what RocketMQ has configured is not lost"
        if complete:
            assert sorted(offset for offset, _ in found) == sorted(waiting)
            assert step > 15, "there are steps to stop at"
            return
    pytest.fail("it never comes to its end")


def test_the_log_has_the_size_of_the_settings_where_there_is_none_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_wheel_small(monkeypatch)
    broker = Broker(settings=replace(SETTINGS, timer_log_file_size=2 * 52 + 16))
    for number in range(3):
        broker.schedule(b"%d" % number, NOW_MS + 60_000)
    for _ in range(2):
        broker.timers.export_to_rocketmq(broker.files, NOW_MS)
        assert [broker.files.file_size(path) for path in log_files(broker.files)] == [120, 120]
        found = RocketMqTimers(broker.store, broker.files, NOW_MS).run(NOW_MS, NOW_MS + DAY_MS)
        assert [offset for offset, _ in found] == [0, 1, 2]


@pytest.mark.parametrize(("sizes", "expected"), [((300, 300), 300), ((300, 400), 1_000), ((20,), 1_000)])
def test_the_size_of_the_files_there_counts_where_they_agree(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], expected: int
) -> None:
    """The files of a RocketMQ that has removed the log's first segments."""
    make_wheel_small(monkeypatch)
    broker = Broker(settings=replace(SETTINGS, timer_log_file_size=1_000))
    for number, size in enumerate(sizes, 4):
        broker.files.create(f"timerlog/{300 * number:020d}", size, preallocate=False)
    broker.schedule(b"a", NOW_MS + 60_000)
    broker.timers.export_to_rocketmq(broker.files, NOW_MS)
    assert log_files(broker.files) == [f"timerlog/{0:020d}"]
    assert broker.files.file_size(f"timerlog/{0:020d}") == expected
    assert [name for name in broker.files.list("") if name.startswith("timerlog")] == ["timerlog"]


def test_levels_continue_after_what_was_delivered() -> None:
    broker = Broker()
    for level in (1, 1, 3):
        properties = {"DELAY": str(level), "REAL_TOPIC": "orders", "REAL_QID": "1", "UNIQ_KEY": "A"}
        broker.writer.append(
            [NewRecord(SCHEDULE_TOPIC, QueueId(level - 1), b"x", properties, NOW_MS)], NOW_MS
        )
    broker.dispatch()
    broker.deliver(NOW_MS + 1_000)
    broker.timers.export_to_rocketmq(broker.files, NOW_MS + 1_000)
    assert pending_levels(broker.store, broker.files) == {1: [], 3: [0]}
    assert DelayOffsets(broker.files).by_level == {1: 2, 3: 0}
    assert not broker.files.exists("config/timercheck"), "the wheel was never used"
    again = Broker(broker.kill(), import_from_rocketmq=True)
    assert [timer.deliver_ms for timer in again.timers.pending("orders")] == [NOW_MS + 10_000]


def test_nothing_waits_but_the_wheel_was_used() -> None:
    broker = Broker(with_small_log(MemoryFileSystem()))
    broker.schedule(b"a", NOW_MS + 10)
    broker.deliver(NOW_MS + 10)
    broker.timers.export_to_rocketmq(broker.files, NOW_MS + 1_234)
    assert load_check(broker.files) == TimerCheck(
        NOW_MS + 1_000, 0, QueueOffset(1), QueueOffset(1), 0, NOW_MS + 1_234, 1
    )
    assert RocketMqTimers(broker.store, broker.files, NOW_MS).run(NOW_MS, NOW_MS + DAY_MS) == []


def test_a_store_without_timers_gets_no_files() -> None:
    broker = Broker()
    before = sorted(broker.files.list("config"))
    broker.timers.export_to_rocketmq(broker.files, NOW_MS)
    assert sorted(broker.files.list("config")) == before
    assert not broker.files.exists("timerwheel")


def test_wheel_snapshots_that_would_win_over_ours_are_removed() -> None:
    broker = Broker(with_small_log(MemoryFileSystem()))
    broker.files.write_atomic("timerwheel.520", b"old")
    broker.schedule(b"a", NOW_MS + 10)
    broker.timers.export_to_rocketmq(broker.files, NOW_MS)
    assert not broker.files.exists("timerwheel.520")


def test_without_timercheck_everything_in_the_wheels_queue_waits() -> None:
    broker = Broker()
    broker.schedule(b"a", NOW_MS + 10)
    broker.schedule(b"b", NOW_MS + 20)
    assert Broker(broker.kill(), import_from_rocketmq=True).timers.pending_count == 2


def test_delete_markers_in_the_timer_log_are_taken_over() -> None:
    """RocketMQ had put message and marker into its wheel; both lie below the offset where it continues."""
    broker = Broker(with_small_log(MemoryFileSystem()))
    broker.schedule(b"a", NOW_MS + 60_500, unique_key="A")
    broker.schedule(b"b", NOW_MS + 60_500, unique_key="B")
    broker.timers.export_to_rocketmq(broker.files, NOW_MS)
    broker.timers.recall("orders", NOW_MS + 60_500, "A", NOW_MS)
    broker.dispatch()
    marker = broker.store.consume_queues.get(WHEEL_TOPIC, QueueId(0))
    assert marker is not None
    physical_offset, size, _ = marker.unit(QueueOffset(2))
    file = broker.files.open("timerlog/00000000000000000000")
    unit = load_units(broker.files)[:1].copy()
    unit["magic"], unit["physical_offset"], unit["record_size"] = 5, physical_offset, size
    file.write(104, unit.tobytes())
    check = load_check(broker.files)
    assert check is not None
    save_check(broker.files, TimerCheck(check.last_read_ms, 156, QueueOffset(3), QueueOffset(3)))
    assert sorted(
        o for o, _ in RocketMqTimers(broker.store, broker.files, NOW_MS).run(NOW_MS, NOW_MS + DAY_MS)
    ) == [1]
    again = Broker(broker.kill(), import_from_rocketmq=True)
    assert [timer.queue_offset for timer in again.timers.pending("orders")] == [1]


@pytest.mark.slow
def test_rocketmq_deliveries_are_not_repeated_even_with_our_snapshot_lost() -> None:
    broker = Broker(with_small_log(MemoryFileSystem()))
    for number in range(6):
        broker.schedule(b"%d" % number, NOW_MS + 1_000 + 5_000 * (number % 2))
    broker.deliver(NOW_MS + 1_000)
    broker.timers.export_to_rocketmq(broker.files, NOW_MS + 2_000)
    ours = Broker(broker.kill(), import_from_rocketmq=True)
    assert ours.timers.pending_count == 3
    ours.events.flush(NOW_MS)
    again = Broker(ours.kill())  # by the log alone
    assert again.timers.pending_count == 3
    again.deliver(NOW_MS + 10_000)
    assert sorted(again.bodies()) == [b"%d" % number for number in range(6)]


# --- the golden stores ------------------------------------------------------------------------------------
def outstanding_of(manifest: dict[str, Any]) -> dict[str, int]:
    """By unique key: when RocketMQ would deliver the undelivered messages."""
    codes = {
        (queue["topic"], queue["queueId"], queue["minOffset"] + index): code
        for queue in manifest["queues"]
        for index, code in enumerate(queue["cqTagsCodes"])
    }
    due = {}
    for message in manifest["messages"]:
        properties = message["properties"]
        if message["topic"] == SCHEDULE_TOPIC:
            due[message["uniqKey"]] = codes[SCHEDULE_TOPIC, message["queueId"], message["queueOffset"]]
        elif message["topic"] == WHEEL_TOPIC:
            due[message["uniqKey"]] = (
                int(properties["TIMER_DELIVER_MS"]) if "TIMER_DELIVER_MS" in properties else 0
            )
    for message in manifest["messages"]:
        if message["topic"] not in (SCHEDULE_TOPIC, WHEEL_TOPIC) and "REAL_TOPIC" in message["properties"]:
            due.pop(message["uniqKey"], None)
    return due


def test_golden_what_is_pending_comes_once_and_at_its_time(tmp_path: Path) -> None:
    manifest = load_manifest("small")
    due = outstanding_of(manifest)
    assert len(due) == 4, "two of the wheel and two of the levels"
    files = RealFileSystem(unpack("small", tmp_path))
    now_ms = manifest["messages"][-1]["storeTimestamp"] + 60_000
    store_settings = settings_of(manifest, flush_mode="async")
    broker = Broker(files, store_settings=store_settings, topics=(), import_from_rocketmq=True, now_ms=now_ms)  # type: ignore[arg-type]
    before = {message.offset_msg_id for message in broker.delivered("AlfaTimers")}
    assert sorted(timer.deliver_ms for timer in broker.timers.pending("AlfaTimers")) == sorted(due.values())
    assert broker.deliver(now_ms) == 0
    for deliver_ms in sorted(due.values()):
        assert broker.deliver(EpochMs(deliver_ms - 1)) == 0
        assert broker.deliver(EpochMs(deliver_ms)) == 1
    new = [message for message in broker.delivered("AlfaTimers") if message.offset_msg_id not in before]
    assert {message.unique_key: message.store_timestamp for message in new} == due
    broker.store.close(now_ms)


@pytest.mark.parametrize("hours", [0, 6, 7])
def test_golden_rocketmq_continues_after_us_as_it_would_have_without_us(tmp_path: Path, hours: int) -> None:
    manifest = load_manifest("small")
    files = RealFileSystem(unpack("small", tmp_path))
    now_ms = manifest["messages"][-1]["storeTimestamp"] + hours * 3_600_000
    store_settings = settings_of(manifest, flush_mode="async")
    broker = Broker(files, store_settings=store_settings, topics=(), import_from_rocketmq=True, now_ms=now_ms)  # type: ignore[arg-type]
    without_us = RocketMqTimers(broker.store, files, now_ms).run(now_ms, now_ms + DAY_MS)
    assert [offset for offset, _ in without_us] == [6, 7]
    broker.deliver(now_ms)
    ours = {message.unique_key for message in broker.delivered("AlfaTimers")}
    broker.timers.export_to_rocketmq(files, now_ms)
    after_us = RocketMqTimers(broker.store, files, now_ms).run(now_ms, now_ms + DAY_MS)
    keys = {m["queueOffset"]: m["uniqKey"] for m in manifest["messages"] if m["topic"] == WHEEL_TOPIC}
    assert [offset for offset, _ in after_us] == [offset for offset in (6, 7) if keys[offset] not in ours]
    assert files.file_size("timerlog/00000000000000000000") == 102_400, "as RocketMQ has it configured"
    left = pending_levels(broker.store, files)
    assert left == {1: [], 2: [], 3: [], 17: [0] if hours == 0 else [], 18: [0] if hours == 0 else []}
    broker.store.close(now_ms)


def test_hand_over_knows_rocketmqs_window() -> None:
    assert rocketmq_transfer.ROLL_WINDOW_MS == 2 * DAY_MS
