"""An engine with its two helpers, as the daemon has them: one thread syncs, another makes blocking calls.

The engine is touched in the caller's thread alone, in turn(). Replies go to the ledger where the daemon would
send them: with sync flush when a sync has covered the message, with async flush after the append.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tests.durability.oracle import Ledger
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_store.engine.message_store import FlushWork, MessageStore

ASYNC_FLUSH_SHARE: Final = 0.05
"""Of the iterations with async flush that begin a sync."""


@dataclass(frozen=True, slots=True)
class Reply:
    """When the log is on disk up to `end`, the line is written, `count` more messages are acknowledged, and
    that producer may continue."""

    end: int
    line: tuple[object, ...]
    count: int = 1
    producer: int = -1


class EngineThreads:
    """One life. `busy`: producers that wait for a reply; `acknowledged`: messages."""

    def __init__(
        self, store: MessageStore, model: ConsumerState, ledger: Ledger, source: random.Random
    ) -> None:
        self._store = store
        self._model = model
        self._ledger = ledger
        self._source = source
        self._sync = store.settings.flush_mode == "sync"
        self._replies: deque[Reply] = deque()
        self._flush_thread, self._work_thread = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._flush: tuple[FlushWork, Future[None]] | None = None
        self._work: tuple[Future[None], Callable[[], None]] | None = None
        self.acknowledged = 0
        self.busy: set[int] = set()

    @property
    def has_work(self) -> bool:
        """Whether the second thread is busy."""
        return self._work is not None

    def reply_later(self, reply: Reply) -> None:
        self._replies.append(reply)

    def turn(self) -> None:
        """Finishes the ended work, and begins new work."""
        if not self._sync:
            self._model.on_messages_available(self._store.dispatch())
            self._reply(self._store.end_offset)
        if self._flush is not None and self._flush[1].done():
            self._finish_flush()
        if self._flush is None and (self._sync or self._source.random() < ASYNC_FLUSH_SHARE):
            self._begin_flush()
        if self._work is not None and self._work[0].done():
            self._finish_work()
        if self._work is None and (spare := self._store.spare_work()) is not None:
            self.begin_work(spare.run, lambda: self._store.finish_spare(spare))

    def sync_up_to(self, end: int) -> None:
        """Returns when the log is on disk up to there."""
        while self._store.flushed_offset < end:
            if self._flush is None:
                self._begin_flush()
            self._finish_flush()

    def begin_work(self, run: Callable[[], None], finish: Callable[[], None] = lambda: None) -> None:
        """`run` in the second thread, `finish` in a later turn."""
        assert self._work is None, "one at a time"
        self._work = self._work_thread.submit(run), finish

    def end(self) -> None:
        """Everything is on disk, and both threads have ended."""
        self.sync_up_to(self._store.end_offset)
        if self._work is not None:
            self._finish_work()
        self._flush_thread.shutdown()
        self._work_thread.shutdown()

    def _begin_flush(self) -> None:
        work = self._store.begin_flush()
        if work is not None:
            self._flush = work, self._flush_thread.submit(work.run)

    def _finish_flush(self) -> None:
        assert self._flush is not None
        work, future = self._flush
        self._flush = None
        future.result()
        self._model.on_messages_available(self._store.finish_flush(work))
        self._ledger.add("synced", self._store.flushed_offset)
        if self._sync:
            self._reply(self._store.flushed_offset)

    def _reply(self, end: int) -> None:
        while self._replies and self._replies[0].end <= end:
            reply = self._replies.popleft()
            self._ledger.add(*reply.line)
            self.busy.discard(reply.producer)
            self.acknowledged += reply.count

    def _finish_work(self) -> None:
        assert self._work is not None
        (future, finish), self._work = self._work, None
        future.result()
        finish()
