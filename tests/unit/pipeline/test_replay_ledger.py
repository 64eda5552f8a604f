"""The ledger of a replay: its content when read again, which other replay is refused, who may write."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trovemq_proto.errors import TroveError
from trovemq_spark.replay import ledger as ledger_module
from trovemq_spark.replay.ledger import Ledger, QueueState, SourceQueue

NAMES = st.text("ab%|-_/. ä", min_size=1, max_size=12)
QUEUES = st.builds(SourceQueue, NAMES, st.just("") | NAMES, st.integers(0, 9))
STATES = st.builds(
    QueueState,
    target_topic=NAMES,
    target_broker=NAMES,
    target_queue_id=st.integers(0, 9),
    target_offset=st.integers(0, 1 << 62),
    source_offset=st.integers(-1, 1 << 62),
    sent=st.integers(0, 1 << 62),
    in_flight=st.booleans(),
)
REPLAY: dict[str, Any] = {"store": "/s", "topics": ["a", "b"], "rate": 1.5, "none": None}


@settings(max_examples=25)
@given(entries=st.lists(st.tuples(QUEUES, STATES), max_size=8))
def test_each_queue_has_what_was_saved_last_whatever_its_names(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[SourceQueue, QueueState]]
) -> None:
    ledger = Ledger(str(tmp_path_factory.mktemp("ledger")))
    expected: dict[SourceQueue, QueueState] = {}
    for queue, state in entries:
        assert ledger.load(queue) == expected.get(queue)
        ledger.save(queue, state)
        expected[queue] = state
    assert {queue: ledger.load(queue) for queue in expected} == expected


def test_a_replay_continues_with_its_own_ledger_and_no_other(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    run = ledger.begin(REPLAY)
    assert ledger.begin(dict(REPLAY)) == run
    for name in REPLAY:
        with pytest.raises(TroveError, match=f"its {name} is") as caught:
            ledger.begin(REPLAY | {name: "other"})
        assert caught.value.symbol == "OPTION_ILLEGAL"
    assert Ledger(str(tmp_path / "second")).begin(REPLAY) != run


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"form": 2}', '{"form": 1, "sent": 1}', "\xff"])
def test_a_damaged_file_is_an_error_and_not_a_queue_that_starts_over(tmp_path: Path, text: str) -> None:
    ledger, queue = Ledger(str(tmp_path)), SourceQueue("topic", "", 3)
    ledger.save(queue, QueueState("t", "b", 0, 0))
    (path,) = (tmp_path / "queues").rglob("*.json")
    path.write_text(text, "latin-1")
    with pytest.raises(TroveError) as caught:
        ledger.load(queue)
    assert caught.value.symbol == "OPTION_ILLEGAL"
    assert str(path.relative_to(tmp_path)) in caught.value.message


def test_two_runs_at_once_are_refused_and_two_tasks_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "LOCK_WAIT_SECONDS", 0.0)
    ledger, queue = Ledger(str(tmp_path)), SourceQueue("topic", "", 3)

    async def twice() -> None:
        async with ledger.holding(queue):
            with pytest.raises(TroveError) as caught:
                async with ledger.holding(queue):
                    pass
            assert caught.value.symbol == "JOB_RUNNING"
            async with ledger.holding(SourceQueue("topic", "", 4)):
                pass
        async with ledger.holding(queue):
            pass

    with ledger.locked(), pytest.raises(TroveError) as caught, ledger.locked():
        pass
    assert caught.value.symbol == "JOB_RUNNING"
    asyncio.run(twice())


def test_the_form_is_the_one_that_is_documented(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.save(SourceQueue("%RETRY%g", "", 7), QueueState("t", "b", 1, 20, 9, 10, in_flight=True))
    assert json.loads((tmp_path / "queues" / "%25RETRY%25g" / "--7.json").read_text()) == {
        "form": 1,
        "topic": "%RETRY%g",
        "broker": "",
        "queueId": 7,
        "targetTopic": "t",
        "targetBroker": "b",
        "targetQueueId": 1,
        "targetOffset": 20,
        "sourceOffset": 9,
        "sent": 10,
        "inFlight": True,
    }
