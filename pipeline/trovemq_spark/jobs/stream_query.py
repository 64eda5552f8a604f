"""Waits until a query completes, fails, or is stopped.

SIGINT and SIGTERM let the present batch finish. A second signal does not wait for it: then the batch is not
visible, and the next run writes it.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from trovemq_proto import errors
from trovemq_spark.report import error_of
from trovemq_spark.sinks.table_sink import BatchSink

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

TICK_SECONDS: Final = 0.5
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_LOGGER: Final = logging.getLogger(__name__)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that the first signal sets; the second one raises KeyboardInterrupt. Outside of the main
    thread, which gets all signals, it has no effect."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    previous = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def watch(
    query: StreamingQuery, sink: BatchSink, stop: threading.Event, on_progress: Callable[[Any], None]
) -> bool:
    """Returns when the query has ended, and whether it was stopped before it was complete.

    on_progress: called with Spark's progress after each batch, or after several short ones with that of the
        last. Raises the query's failure: the TroveError if it is one, else Spark's exception.
    """
    reported = -1
    try:
        while not _has_ended(query, sink):
            last = query.lastProgress
            if last is not None and last.batchId != reported:
                reported = last.batchId
                on_progress(last)
            if stop.is_set():
                sink.stop()
                return True
        return False
    finally:
        # This interrupts Spark's tasks in a batch that is not waited for; nothing of it is visible.
        query.stop()


def _has_ended(query: StreamingQuery, sink: BatchSink) -> bool:
    """Whether the query has ended; waits a moment."""
    try:
        return bool(query.awaitTermination(TICK_SECONDS))  # type: ignore[arg-type]
    except Exception as error:
        found = error_of(sink.failure or error)
        if found.spec is errors.UNKNOWN_ERROR:
            raise
        raise found from error
