"""The disk fills: nothing goes that retention keeps, unless that is asked for; and then answers say so."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import pytest

from tests.support.retention import AT_ONCE, HOUR_MS, PRESSED, Broker
from trovemq_broker.query.get_message import get_message
from trovemq_broker.query.lacking import lacking_note
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.early_removal import PATH, EarlyRemoval, Removed
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.retention import RetentionPolicy

KEEPING: Final = replace(AT_ONCE, forcible_enable=False)


def _forced() -> Broker:
    """A broker that removed young segments: those of `orders` and the first of `filler`."""
    broker = Broker(MemoryFileSystem())
    broker.send("gone")
    broker.fill(4)
    assert broker.clean(PRESSED) > 0
    broker.now_ms += 1_000
    broker.send("kept", "lines")
    return broker


def test_fresh_messages_were_deleted_because_the_disk_filled() -> None:
    assert not RetentionPolicy().forcible_enable
    broker = Broker(MemoryFileSystem(), policy=KEEPING)
    broker.send("kept")
    broker.fill(4)
    assert broker.clean(PRESSED) == 0
    assert [message.body for message in broker.messages("orders")] == [b"kept"]
    broker.now_ms += HOUR_MS
    broker.send("later")
    assert broker.clean(PRESSED) > 0, "segments beyond retention go"
    assert not broker.store.early_removal.removed


def test_answers_said_complete_though_fresh_messages_were_deleted() -> None:
    broker = _forced()
    newest_ms = broker.store.early_removal.removed.newest_ms
    assert "removed before their time" in lacking_note(broker.store, "orders", 0)
    assert lacking_note(broker.store, "orders", newest_ms)
    assert lacking_note(broker.store, "", newest_ms)
    assert not lacking_note(broker.store, "orders", newest_ms + 1), "it does not reach after it"
    assert not lacking_note(broker.store, "lines", 0), "this topic still has its first message"
    with pytest.raises(TroveError, match="removed before their time") as refused:
        get_message(broker.store, "id-gone")
    assert refused.value.spec is errors.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_what_went_early_is_known_until_it_would_have_gone_anyway(how: str) -> None:
    broker = _forced()
    removed = broker.store.early_removal.removed
    assert removed.until_ms == removed.newest_ms + HOUR_MS
    files = broker.files
    assert isinstance(files, MemoryFileSystem)
    broker = broker.stop() if how == "stop" else Broker(files.after_power_cut(), now_ms=broker.now_ms)
    assert broker.store.early_removal.removed == removed
    broker.now_ms = EpochMs(removed.until_ms - 1)
    broker.clean()
    assert lacking_note(broker.store, "orders", 0)
    broker.now_ms += 1
    broker.clean()
    assert not lacking_note(broker.store, "orders", 0)
    assert not broker.files.exists(PATH)
    assert not broker.stop().store.early_removal.removed


def test_nothing_goes_early_before_it_is_written_down() -> None:
    broker = Broker(MemoryFileSystem())
    broker.fill(4)
    begin = broker.store.min_offset

    def refuse(_newest_ms: int, _until_ms: int) -> None:
        raise TroveError(errors.DISK_FULL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.store.early_removal, "note", refuse)
        with pytest.raises(TroveError):
            broker.clean(PRESSED)
    assert broker.store.min_offset == begin


def test_what_was_held_until_it_is_acknowledged_lacks_for_as_long() -> None:
    broker = Broker(MemoryFileSystem(), policy=replace(AT_ONCE, unacknowledged_max_ms=24 * HOUR_MS))
    broker.store.topics.create("held", queue_count=1, options={"retention": "until_acknowledged"})
    broker.send("wanted", "held")
    broker.fill(2)
    assert broker.clean(PRESSED) > 0
    removed = broker.store.early_removal.removed
    assert removed.until_ms == removed.newest_ms + 24 * HOUR_MS


def test_forced_cleaning_is_reported_loudly_and_filling_without_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[str] = []

    class Log:
        def info(self, _event: str, **_fields: object) -> None: ...

        def warning(self, event: str, **_fields: object) -> None:
            reported.append(event)

    monkeypatch.setattr("trovemq_broker.maintenance.retention_task.get_logger", Log)
    _forced()
    assert reported == ["retention.removed_early"]
    reported.clear()
    files = MemoryFileSystem()
    broker = Broker(files, policy=replace(KEEPING, forcible_percent=85, warning_percent=100))
    used = files.total_bytes() - files.free_bytes()
    files.capacity = files.total_bytes() if used == 0 else None
    monkeypatch.setattr(broker.store.files, "total_bytes", lambda: 100)
    for free, expected in ((20, []), (14, ["retention.disk_filling"]), (13, []), (20, []), (14, None)):
        reported.clear()
        monkeypatch.setattr(broker.store.files, "free_bytes", lambda free=free: free)
        asyncio.run(broker.task.check_disk())
        assert reported == (["retention.disk_filling"] if expected is None else expected)


def test_a_mark_that_is_damaged_or_of_a_newer_version_is_never_guessed_at() -> None:
    files = MemoryFileSystem()
    EarlyRemoval.load(files).note(EpochMs(5), EpochMs(9))
    assert EarlyRemoval.load(files).removed == Removed(EpochMs(5), EpochMs(9))
    early = EarlyRemoval.load(files)
    early.note(EpochMs(3), EpochMs(10))
    assert EarlyRemoval.load(files).removed == Removed(EpochMs(5), EpochMs(10)), "neither number goes down"
    files.write_atomic(PATH, files.read_bytes(PATH).replace(b"5", b"4"))
    assert EarlyRemoval.load(files).removed == Removed(EpochMs(5), EpochMs(10)), "there is a second copy"
    for text, symbol in (
        (b'{"formatVersion": 2}', "STORE_NEWER"),
        (b'{"formatVersion": 1, "newest": "x", "until": 1}', "STORE_FAILED"),
        (b"junk", "STORE_FAILED"),
    ):
        for path in (PATH, f"{PATH}.bak"):
            files.write_atomic(path, text)
        with pytest.raises(TroveError) as refused:
            EarlyRemoval.load(files)
        assert refused.value.symbol == symbol
