"""How the job `stream` watches its query, without Spark: signals, ends and failures."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.jobs.stream_query import stop_signals, watch
from trovemq_spark.sinks.delta import DeltaSink
from trovemq_spark.sinks.table_sink import BatchSink


class Query:
    """Ends, or fails, at this check of its state."""

    def __init__(self, batches: list[int], failure: Exception | None = None) -> None:
        self._batches = batches
        self._failure = failure
        self.lastProgress: Any = None
        self.stopped = False

    def awaitTermination(self, timeout: float) -> bool:
        assert timeout > 0
        if not self._batches:
            if self._failure is not None:
                raise self._failure
            return True
        self.lastProgress = SimpleNamespace(batchId=self._batches.pop(0))
        return False

    def stop(self) -> None:
        self.stopped = True


def watched(
    query: Query, sink: BatchSink | None = None, stop: threading.Event | None = None
) -> tuple[bool, list[int]]:
    reported: list[int] = []
    sink = sink or BatchSink(lambda rows: None)
    stopped = watch(query, sink, stop or threading.Event(), lambda batch: reported.append(batch.batchId))  # type: ignore[arg-type]
    return stopped, reported


def test_each_batch_is_reported_once() -> None:
    query = Query([0, 0, 1, 1, 4])
    assert watched(query) == (False, [0, 1, 4])
    assert query.stopped


def test_a_stop_ends_it_before_its_end() -> None:
    query = Query([0, 1, 2])
    stop = threading.Event()
    stop.set()
    assert watched(query, stop=stop) == (True, [0])
    assert query.stopped


def test_a_failure_names_its_cause() -> None:
    sink = BatchSink(lambda rows: None)
    sink.failure = TroveError(errors.DISK_FULL, "no space")
    query = Query([], RuntimeError("FOREACH_BATCH_USER_FUNCTION_ERROR"))
    with pytest.raises(TroveError, match=errors.DISK_FULL.symbol):
        watched(query, sink)
    assert query.stopped
    with pytest.raises(TroveError, match=errors.DATA_LOST.symbol):
        watched(Query([], RuntimeError("Java said\n  TroveError: DATA_LOST (E312): gone\n")))
    with pytest.raises(RuntimeError, match="a bug"):
        watched(Query([], RuntimeError("a bug")))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_insists(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals() as asked:
        signal.raise_signal(number)
        assert asked.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_signals_are_left_alone_in_another_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []

    def other() -> None:
        with stop_signals() as asked:
            seen.extend((asked.is_set(), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [False, before]


def test_rows_of_delta_are_those_that_spark_counted_once_a_batch() -> None:
    sink = DeltaSink("out", lambda rows: None)
    progress = [SimpleNamespace(batchId=number, numInputRows=10 + number) for number in range(5)]
    for first, end in ((0, 1), (0, 3), (2, 5), (2, 5)):  # Spark keeps the last ones only
        sink.observe(SimpleNamespace(recentProgress=progress[first:end]))  # type: ignore[arg-type]
    assert sink.facts()["rows"] == 10 + 11 + 12 + 13 + 14
