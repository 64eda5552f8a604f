"""Sending a verifiable run, on a loop with its own time: pace, retries, and a line for every send."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_loop import run
from tests.support.verify_client import (
    HALF,
    LATE,
    REFUSED,
    STORED,
    UNKNOWN_NOT,
    UNKNOWN_STORED,
    ScriptedProducer,
)
from trovemq._verify.content import RunContent
from trovemq._verify.ledger import LedgerEntry, LedgerReader, LedgerWriter, RunHeader
from trovemq._verify.producing import (
    BATCHES_IN_FLIGHT_MAX,
    DRAIN_SECONDS_MAX,
    RunPlan,
    RunSummary,
    produce_run,
)
from trovemq.receipts import SendReceipt
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

PLACES = [("a", 0), ("a", 1), ("b", 0)]


@dataclass
class Store:
    """A client whose producers follow a script; it keeps unique keys by queue."""

    script: Sequence[str | TroveError] = ()
    queues: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    producers: list[ScriptedProducer] = field(default_factory=list)

    def producer(self, topic: str, **_: object) -> ScriptedProducer:
        self.producers.append(ScriptedProducer(self.send, topic, deque(self.script)))
        return self.producers[-1]

    async def send(
        self, topic: str, body: bytes, *, keys: list[str], message_id: str, queue_id: int, broker: str
    ) -> SendReceipt:
        queue = self.queues.setdefault((broker, queue_id), [])
        queue.append(message_id)
        offset = len(queue) - 1
        return SendReceipt(
            topic, queue_id, offset, offset, f"id{offset}", message_id, "disk", 1, broker, "PUT_OK"
        )


@dataclass
class Outcome:
    """The result of a run."""

    summary: RunSummary
    entries: list[LedgerEntry]
    ended: bool
    error: TroveError | None

    def of(self, outcome: str) -> list[LedgerEntry]:
        return [entry for entry in self.entries if entry.outcome == outcome]


def produced(store: Store, path: Path, **changes: Any) -> Outcome:
    plan = RunPlan(
        **{
            "topic": "orders",
            "places": PLACES,
            "content": RunContent(7, 100, 10),
            "rate": 100,
            "seconds": 2,
            "producers": 1,
            **changes,
        }
    )
    summary, error = RunSummary(), None
    header = RunHeader("orders", plan.content, plan.producers, dict.fromkeys(PLACES, 0), 1)
    with LedgerWriter(path, header) as writer:
        try:
            run(produce_run(store, plan, writer, summary))  # type: ignore[arg-type]  # a client's part
        except TroveError as failure:
            error = failure
    with LedgerReader(path) as reader:
        return Outcome(summary, list(reader.entries()), reader.ended, error)


@pytest.mark.parametrize(("rate", "producers"), [(100, 1), (100, 4), (5_000, 2), (2.5, 1)])
def test_the_pace_is_kept(rate: float, producers: int, tmp_path: Path) -> None:
    outcome = produced(Store(), tmp_path / "l", rate=rate, producers=producers, seconds=4)
    assert abs(outcome.summary.sent - rate * 4) <= max(producers, rate * 0.01)
    assert outcome.summary.acknowledged == outcome.summary.sent == len(outcome.of("acknowledged"))
    assert outcome.ended


def test_every_queue_gets_its_part_and_every_line_is_right(tmp_path: Path) -> None:
    store, content = Store(), RunContent(7, 100, 10)
    outcome = produced(store, tmp_path / "l", producers=2)
    assert sorted(store.queues) == PLACES
    for entry in outcome.entries:
        assert store.queues[entry.broker, entry.queue_id][entry.queue_offset] == entry.message_id
    for producer in (0, 1):
        own = [entry for entry in outcome.entries if entry.producer == producer]
        assert [entry.message_id for entry in own] == [
            content.message_id(producer, i) for i in range(len(own))
        ]
        assert [entry.keys for entry in own] == [content.key(i) for i in range(len(own))]
        assert [entry.sequence for entry in own] == list(range(len(own)))


def test_a_send_in_doubt_is_written_as_unknown_and_sent_again(tmp_path: Path) -> None:
    store = Store([UNKNOWN_STORED, STORED, UNKNOWN_NOT])
    outcome = produced(store, tmp_path / "l")
    unknown, names = outcome.of("unknown"), [e.message_id for e in outcome.of("acknowledged")]
    assert outcome.summary.unknown == len(unknown) == 2
    assert {entry.error for entry in unknown} == {"BROKER_UNREACHABLE"}
    assert {entry.queue_offset for entry in unknown} == {-1}
    assert {entry.message_id for entry in unknown} <= set(names)
    assert len(names) == len(set(names)) == outcome.summary.sent
    copies = Counter(name for queue in store.queues.values() for name in queue)
    assert [count for count in copies.values() if count > 1] == [2]
    sequences = [entry.sequence for entry in outcome.entries]
    assert len(sequences) == len(set(sequences)), "a second attempt is a separate send"


def test_a_refused_send_is_sent_again_and_said(tmp_path: Path) -> None:
    outcome = produced(Store([REFUSED, REFUSED]), tmp_path / "l")
    assert (outcome.summary.refused, outcome.summary.unknown) == (2, 0)
    assert [entry.error for entry in outcome.of("refused")] == ["DISK_FULL", "DISK_FULL"]
    assert outcome.summary.acknowledged == outcome.summary.sent


@pytest.mark.parametrize("spec", [errors.STORE_FAILED, errors.UNKNOWN_ERROR, errors.REQUEST_TIMEOUT])
def test_an_answer_that_leaves_it_open_is_unknown(spec: errors.ErrorSpec, tmp_path: Path) -> None:
    outcome = produced(Store([TroveError(spec)]), tmp_path / "l")
    assert [entry.error for entry in outcome.of("unknown")] == [spec.symbol]
    assert outcome.of("refused") == []
    assert outcome.summary.acknowledged == outcome.summary.sent


def test_of_a_batch_that_is_stored_in_part_the_rest_is_sent_again(tmp_path: Path) -> None:
    outcome = produced(Store([STORED, HALF]), tmp_path / "l", rate=5_000)
    names = [entry.message_id for entry in outcome.of("acknowledged")]
    assert outcome.summary.unknown == len(outcome.of("unknown")) > 0
    assert len(names) == len(set(names)) == outcome.summary.sent


def test_a_message_whose_copies_were_late_counted_as_acknowledged(tmp_path: Path) -> None:
    outcome = produced(Store([STORED, LATE]), tmp_path / "l", rate=5_000)
    late = outcome.of("unknown")
    names = [entry.message_id for entry in outcome.of("acknowledged")]
    assert {entry.error for entry in late} == {"REPLICA_TIMEOUT"}
    assert outcome.summary.unknown == len(late) > 0
    assert len(names) == len(set(names)) == outcome.summary.sent, "each was sent again"
    assert {entry.copies for entry in outcome.of("acknowledged")} == {1}
    assert {entry.copies for entry in late} == {0}


def test_while_nothing_is_acknowledged_nothing_new_is_made(tmp_path: Path) -> None:
    away = [TroveError(errors.BROKER_UNREACHABLE)] * 400
    outcome = produced(Store(away), tmp_path / "l", rate=1_000, seconds=20)
    assert len(outcome.of("refused")) >= 400
    assert outcome.summary.acknowledged == outcome.summary.sent
    first_messages = {entry.message_id for entry in outcome.of("refused")}
    assert len(first_messages) < 1_000, f"{BATCHES_IN_FLIGHT_MAX} batches at most"
    assert outcome.summary.sent < 15_000, "the time without a broker is not made up for"
    assert outcome.ended


def test_a_broker_that_never_comes_back_is_given_up(tmp_path: Path) -> None:
    outcome = produced(Store([TroveError(errors.BROKER_UNREACHABLE)] * 5_000), tmp_path / "l")
    assert outcome.summary.acknowledged == 0
    assert outcome.summary.to_json()["givenUp"] == outcome.summary.sent > 0
    assert DRAIN_SECONDS_MAX <= outcome.summary.seconds <= DRAIN_SECONDS_MAX + 10
    assert outcome.ended


@pytest.mark.parametrize("spec", [errors.TOPIC_NOT_FOUND, errors.MESSAGE_SIZE_EXCEEDED])
def test_what_no_repetition_helps_ends_the_run(spec: errors.ErrorSpec, tmp_path: Path) -> None:
    store = Store([STORED, TroveError(spec)])
    outcome = produced(store, tmp_path / "l", producers=3)
    assert outcome.error is not None
    assert outcome.error.spec is spec
    assert not outcome.ended
    assert all(producer.aborted for producer in store.producers)


def test_batches_are_bounded_in_bytes(tmp_path: Path) -> None:
    store = Store()
    produced(store, tmp_path / "l", rate=1_000, seconds=0.2, content=RunContent(7, 100_000, 10))
    assert max(len(batch) for batch in store.producers[0].batches) == 2
