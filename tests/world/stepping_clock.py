"""A store under a clock that steps: the boot time, which is real time, runs on evenly; the clock is off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tests.support.deduplicated import TOPIC, send
from tests.support.engine import NOW_MS, SMALL_SYNC, flush
from trovemq_daemon.clocks import SettledClock
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.engine.clock_trust import ClockTrust
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log import checkpoint

WINDOW_MS: Final = 2_000
TICK_MS: Final = 1_000
"""Coarser than a broker's, so that hours pass quickly."""
SETTINGS: Final = replace(
    SMALL_SYNC,
    tree_index_enable=True,
    commit_log_file_size=4_096,
    index_item_count=64,
    batch_size_max=2_048,
    body_size_max=1_024,
)


@dataclass
class Sent:
    """A message: its store time, and the real time (as the boot time) at which it was stored."""

    name: str
    physical_offset: int
    store_ms: int
    boot_ms: int


class World:
    """One store, its clock, and the messages sent. `boot_ms` is real time."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.files = MemoryFileSystem()
        self.boot_ms = 1_000_000
        self.off_ms = 0
        self._right_ms = now_ms - self.boot_ms
        self.sent: list[Sent] = []
        self.stepped_boot_ms = -(1 << 40)
        """When the clock was last set."""
        self.steps = 0
        """How often store times stepped back."""
        self.settled = SettledClock(lambda: self.now_ms, lambda: self.boot_ms)
        self._open()

    @property
    def right_ms(self) -> EpochMs:
        return EpochMs(self.boot_ms + self._right_ms)

    @property
    def now_ms(self) -> EpochMs:
        """The clock's time."""
        return EpochMs(self.right_ms + self.off_ms)

    def _open(self) -> None:
        self.opened_boot_ms = self.boot_ms
        self.store = MessageStore.open(self.files, SETTINGS, self.now_ms)
        if self.store.topics.get(TOPIC) is None:
            self.store.topics.create(TOPIC, 1, options={"deduplicate": f"{WINDOW_MS // 1000}s"})
        self.deduplication = Deduplication(self.store)
        self.trust = ClockTrust(self.files, "this run of the machine")
        self.trust.load()
        self.tick()

    def set_clock(self, off_ms: int) -> None:
        if off_ms != self.off_ms:
            self.off_ms, self.stepped_boot_ms = off_ms, self.boot_ms

    def tick(self) -> None:
        """As the broker's task does it."""
        self.settled()
        self.trust.tick(self.now_ms, self.boot_ms)
        if self.trust.unsaved:
            self.trust.save()
        if self.store.tick(self.now_ms, self.boot_ms):
            self.store.begin_time_step(self.now_ms)
            self.store.flush_projections()
            self.steps += self.store.finish_time_step(self.now_ms)

    def pass_time(self, ms: int) -> None:
        until = self.boot_ms + ms
        while self.boot_ms < until:
            self.boot_ms = min(until, self.boot_ms + TICK_MS)
            self.tick()

    def send(self, name: str, *, sync: bool = True) -> AppendResult:
        result = send(self.deduplication, self.store, [name], now_ms=self.now_ms)
        if not result.duplicates:
            self.sent.append(Sent(name, result.physical_offset, result.store_timestamp, self.boot_ms))
        if sync:
            self.sync()
        return result

    def sync(self) -> None:
        flush(self.store)
        while (step := self.store.begin_trees(1 << 20)) is not None:
            try:
                step.run()
            finally:
                self.store.finish_trees(step)
        assert self.store.trees is not None
        self.store.trees.sweep_ids(self.store.time.since_of(), self.store.time.steady_ms, 16)

    def restart(self, how: str) -> None:
        """stopped, killed, or `rebuilt`: everything beside the log is gone."""
        if how == "stopped":
            self.store.close(self.now_ms)
        else:
            self.files = self.files.after_process_kill()
        if how == "rebuilt":
            for path in ("trovemq/state.json", "trovemq/key-index.json", "trovemq/trees/data.mdb"):
                if self.files.exists(path):
                    self.files.remove(path)
            for name in self.files.list("index"):
                self.files.remove(f"index/{name}")
        self._open()
        self.sync()
        self.catch_up()

    def catch_up(self) -> None:
        while self.store.catch_up(1 << 20):
            pass

    def check_checkpoint(self) -> None:
        """No time of the checkpoint on disk is later than a record that is not on disk."""
        saved = checkpoint.load(self.files)
        times = (saved.physic_msg_timestamp, saved.logics_msg_timestamp, saved.index_msg_timestamp)
        unflushed = [one.store_ms for one in self.sent if one.physical_offset >= self.store.flushed_offset]
        assert max(times) <= min(unflushed, default=1 << 62)

    def stored_boot_ms(self, end: PhysicalOffset) -> int:
        """The real time of the last record below that offset."""
        return max((one.boot_ms for one in self.sent if one.physical_offset < end), default=0)
