"""Acknowledgements of a replica group: each comes once, after its sync and its commit, and never before."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_copies import FakeCopies
from tests.support.fake_loop import fake_time, run
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.produce.replicated_commit import Ack, ReplicaAckSettings
from trovemq_broker.produce.waiters import Resolve
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.settings import FlushMode

ACK_TIMEOUT_S = 3.0


@dataclass
class Work:
    end: PhysicalOffset

    def run(self) -> None:
        """The sync; a test calls Group.sync() instead."""

    def begin_in_kernel(self, kernel: KernelSync) -> bool:
        raise NotImplementedError

    def end_in_kernel(self, kernel: KernelSync) -> bool:
        raise NotImplementedError


@dataclass
class Log:
    """A log of which only the ends exist."""

    flush_mode: FlushMode
    end_offset: PhysicalOffset = LOG_ORIGIN
    flushed_offset: PhysicalOffset = LOG_ORIGIN
    visible_offset: PhysicalOffset = LOG_ORIGIN
    limit: PhysicalOffset = LOG_ORIGIN
    failed: bool = False
    dispatch_error: Exception | None = None

    def begin_flush(self) -> Work | None:
        return Work(self.end_offset) if self.end_offset > self.flushed_offset else None

    def finish_flush(self, work: Work) -> list[tuple[str, QueueId]]:
        self.flushed_offset = work.end
        return self.dispatch()

    def mark_failed(self) -> None:
        self.failed = True

    def limit_commits(self, commit_limit: PhysicalOffset | None) -> None:
        assert commit_limit is not None
        assert commit_limit >= self.limit, "committed is committed"
        self.limit = commit_limit

    def dispatch(self) -> list[tuple[str, QueueId]]:
        if self.dispatch_error is not None:
            raise self.dispatch_error
        appended = self.flushed_offset if self.flush_mode == "sync" else self.end_offset
        self.visible_offset = min(appended, self.limit)
        return [("orders", QueueId(0))]


@dataclass
class Group:
    """The group commit of a leader whose syncs and commits a test makes."""

    flush_mode: FlushMode = "sync"
    ack: Ack = "replicated"
    copies: FakeCopies = field(default_factory=FakeCopies)
    events: list[str] = field(default_factory=list)
    uncommitted_bytes_max: int = 1_000_000

    def __post_init__(self) -> None:
        self.log = Log(self.flush_mode)
        flush = FlushSettings(
            flush_mode=self.flush_mode,
            uncommitted_bytes_max=self.uncommitted_bytes_max,
            append_wait_max_ms=50,
        )
        self.commit = GroupCommit(self.log, flush, self._announced)
        acks = ReplicaAckSettings(
            ack=self.ack,
            ack_timeout_ms=int(ACK_TIMEOUT_S * 1000),
            uncommitted_bytes_max=self.uncommitted_bytes_max,
        )
        self.commit.add_copies(self.log, self.copies, acks)

    def _announced(self, _grown: object) -> None:
        self.events.append(f"visible {self.log.visible_offset}")

    def append(self, size: int = 100) -> PhysicalOffset:
        self.log.end_offset = PhysicalOffset(self.log.end_offset + size)
        self.commit.appended()
        return self.log.end_offset

    def send(self, name: str, size: int = 100) -> None:
        """A message, whose acknowledgement is an event."""
        self.commit.when_acknowledged(self.append(size), self.noting(name))

    def noting(self, name: str) -> Resolve:
        return lambda error: self.events.append(f"{name} {error.symbol if error else 'ok'}")

    def sync(self) -> None:
        """A whole sync of everything appended."""
        self.commit._work = self.log.begin_flush()
        if self.commit._work is not None:
            assert self.commit._finish(None)

    @property
    def answers(self) -> list[str]:
        return [event for event in self.events if not event.startswith("visible")]


@fake_time
async def test_a_message_was_acknowledged_before_its_commit() -> None:
    group = Group()
    group.send("a")
    group.sync()
    assert group.answers == []
    group.copies.commit(100)
    assert group.events == ["visible 0", "visible 100", "a ok"], "it can be read when it is acknowledged"


@fake_time
async def test_a_message_was_acknowledged_before_its_sync() -> None:
    group = Group()
    group.send("a")
    group.copies.commit(100)
    assert (group.answers, group.log.visible_offset) == ([], 0)
    group.sync()
    assert group.answers == ["a ok"]


@fake_time
async def test_in_async_mode_a_message_waits_for_its_commit_only() -> None:
    group = Group("async")
    group.send("a")
    assert group.answers == []
    group.copies.commit(100)
    assert group.answers == ["a ok"]


@fake_time
@pytest.mark.parametrize("commit_first", [True, False])
async def test_a_change_in_async_mode_waits_for_its_sync_and_its_commit(commit_first: bool) -> None:
    group = Group("async")
    group.commit.when_durable(group.append(), group.noting("a"))
    for commits in (commit_first, not commit_first):
        assert group.answers == []
        if commits:
            group.copies.commit(100)
        else:
            group.sync()
    assert group.answers == ["a ok"]


@fake_time
async def test_with_ack_leader_the_sync_is_enough_and_readers_see_nothing() -> None:
    group = Group(ack="leader")
    group.send("a")
    group.sync()
    assert (group.answers, group.log.visible_offset) == (["a ok"], 0)
    assert group.commit.copies_as("group") == 1
    waits = asyncio.create_task(group.commit.committed(PhysicalOffset(100)))
    await asyncio.sleep(0)
    assert not waits.done(), "consumers' offsets must not pass the commit"
    group.copies.commit(100)
    await waits
    assert group.log.visible_offset == 100


@fake_time
async def test_messages_are_acknowledged_in_the_order_of_their_appends() -> None:
    group = Group()
    for name in "abc":
        group.send(name)
    group.sync()
    group.copies.commit(200)
    assert group.answers == ["a ok", "b ok"]
    group.copies.commit(300)
    assert group.answers == ["a ok", "b ok", "c ok"]


@fake_time
async def test_a_late_commit_answers_replica_timeout_once() -> None:
    group = Group()
    group.send("a")
    group.sync()
    await asyncio.sleep(ACK_TIMEOUT_S)
    assert group.answers == ["a REPLICA_TIMEOUT"]
    group.copies.commit(100)
    assert group.answers == ["a REPLICA_TIMEOUT"], "the commit answers it no more"
    assert group.log.visible_offset == 100, "it is in the log, and visible now"
    assert group.commit.copies is not None
    assert (group.commit.copies.timeout_count, group.commit.timeout_count) == (1, 0)


@fake_time
async def test_a_late_sync_in_a_group_is_a_flush_disk_timeout() -> None:
    group = Group()
    group.send("a")
    group.copies.commit(100)
    await asyncio.sleep(ACK_TIMEOUT_S)
    assert group.answers == ["a FLUSH_DISK_TIMEOUT"]
    assert group.commit.timeout_count == 1


@fake_time
async def test_a_smaller_in_sync_set_commits_and_says_so() -> None:
    group = Group()
    group.send("a")
    group.sync()
    assert group.commit.copies_as("group") == 3
    group.copies.copies = 2
    group.copies.commit(100)
    assert group.answers == ["a ok"]
    assert group.commit.copies_as("group") == 2


@fake_time
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_a_topic_is_weaker_or_stronger_than_its_group(flush_mode: FlushMode) -> None:
    for ack in ("leader", "replicated"):
        group = Group(flush_mode, ack)
        for level in ("leader", "replicated", "group"):
            group.commit.when_acknowledged_as(level)(group.append(), group.noting(level))
        group.sync()
        early = ["leader ok", "group ok"] if ack == "leader" else ["leader ok"]
        assert group.answers == early
        group.copies.commit(300)
        assert sorted(group.answers) == ["group ok", "leader ok", "replicated ok"]
        assert [group.commit.copies_as(level) for level in ("leader", "replicated")] == [1, 3]


@fake_time
async def test_the_copies_hear_of_each_append_and_of_each_sync() -> None:
    group = Group()
    group.send("a")
    group.send("b")
    group.sync()
    assert group.copies.events == ["appended", "appended", "flushed"]


@fake_time
async def test_a_commit_from_within_the_sync_answers_at_once() -> None:
    group = Group()
    group.copies.on_flushed = lambda: group.copies.commit(group.log.flushed_offset)
    group.send("a")
    group.send("b")
    group.sync()
    assert group.events == ["visible 0", "visible 200", "a ok", "b ok"]


@fake_time
async def test_a_failed_store_answers_everybody_who_waits_for_copies() -> None:
    group = Group()
    group.send("a")
    group.sync()
    group.commit.fail(OSError("EIO"))
    assert group.answers == ["a STORE_FAILED"]
    group.copies.commit(100)
    group.send("b")
    assert group.answers == ["a STORE_FAILED", "b STORE_FAILED"]
    assert group.log.visible_offset == 0


@fake_time
async def test_a_dispatch_that_fails_at_a_commit_acknowledges_nothing() -> None:
    group = Group()
    group.send("a")
    group.sync()
    group.log.dispatch_error = AssertionError("a queue has a hole")
    group.copies.commit(100)
    assert group.answers == ["a STORE_FAILED"]
    assert group.log.failed


@fake_time
@pytest.mark.parametrize("leads", [True, False])
async def test_a_stop_waits_for_the_commit_only_while_the_node_leads(leads: bool) -> None:
    group = Group()
    group.send("a")
    if not leads:
        group.copies.refusal = TroveError(errors.NOT_ENOUGH_REPLICAS, "node-2 leads")
    group.commit.stop()
    group.sync()
    group.copies.commit(100)
    assert group.answers == (["a ok"] if leads else ["a REPLICA_TIMEOUT"])


@fake_time
async def test_appends_wait_while_too_much_is_not_committed() -> None:
    group = Group(uncommitted_bytes_max=1_000)
    group.append(1_000)
    group.sync()
    assert group.commit.full
    with pytest.raises(TroveError, match="1000 bytes are waiting for the copies") as caught:
        await group.commit.wait_for_capacity()
    assert caught.value.spec is errors.OS_PAGE_CACHE_BUSY
    waits = asyncio.create_task(group.commit.wait_for_capacity())
    await asyncio.sleep(0)
    group.copies.commit(500)
    await waits
    assert not group.commit.full


@fake_time
async def test_the_limit_of_uncommitted_bytes_can_be_raised() -> None:
    group = Group(uncommitted_bytes_max=1_000)
    group.append(1_000)
    waits = asyncio.create_task(group.commit.wait_for_capacity())
    await asyncio.sleep(0)
    group.commit.apply(FlushSettings(uncommitted_bytes_max=2_000))
    await waits


@fake_time
async def test_who_waits_for_space_hears_that_copies_are_missing() -> None:
    group = Group(uncommitted_bytes_max=1_000)
    group.append(1_000)
    group.copies.refuse()
    with pytest.raises(TroveError) as caught:
        await group.commit.wait_for_capacity()
    assert caught.value.spec is errors.NOT_ENOUGH_REPLICAS


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["message", "change"]), st.integers(1, 300)),
        st.tuples(st.just("sync"), st.just(0)),
        st.tuples(st.just("commit"), st.sampled_from([50, 100])),
        st.tuples(st.just("pause"), st.integers(1, 2_500)),
        st.tuples(st.just("set"), st.integers(1, 3)),
        st.sampled_from([("fail", 0), ("sync", 0), ("commit", 100)]),
    ),
    max_size=30,
)


@dataclass
class Asked:
    """One that waits. `levels`: of the log, up to which all must be for its answer."""

    number: int
    end: PhysicalOffset
    levels: tuple[str, ...]
    since_s: float
    answers: list[str] = field(default_factory=list)


class Model:
    """A group in which anything happens in any order, beside a plain account of the answers."""

    def __init__(self, flush_mode: FlushMode, ack: Ack) -> None:
        self.group = Group(flush_mode, ack)
        self.asked: list[Asked] = []
        self.answered: list[Asked] = []
        self.faults: list[str] = []
        """An assertion in a callback would count as a fault of the store."""
        self.has_failed = False
        local = ("synced",) if flush_mode == "sync" else ()
        copied = ("committed",) if ack == "replicated" else ()
        self.levels = {"message": local + copied, "change": ("synced", *copied)}

    def step(self, step: str, value: int) -> None:
        group = self.group
        if step in self.levels:
            self._ask(step, group.append(value))
        elif step == "sync" and not self.has_failed:
            group.sync()
        elif step == "commit":
            ends = [LOG_ORIGIN, *(one.end for one in self.asked)]
            group.copies.commit(max(group.copies.commit_offset, ends[(len(ends) - 1) * value // 100]))
        elif step == "set":
            group.copies.copies = value
        elif step == "fail":
            self.has_failed = True
            group.commit.fail(OSError("EIO"))

    def _ask(self, kind: str, end: PhysicalOffset) -> None:
        now_s = asyncio.get_running_loop().time()
        one = Asked(len(self.asked), end, self.levels[kind], now_s)
        self.asked.append(one)

        def resolve(error: TroveError | None) -> None:
            one.answers.append("ok" if error is None else error.symbol)
            self.answered.append(one)
            if fault := self._fault(one):
                self.faults.append(fault)

        commit = self.group.commit
        (commit.when_durable if kind == "change" else commit.when_acknowledged)(end, resolve)

    def _reached(self, level: str) -> PhysicalOffset:
        return self.group.log.flushed_offset if level == "synced" else self.group.copies.commit_offset

    def _fault(self, one: Asked) -> str:
        """An answer that is wrong now."""
        waited_s = asyncio.get_running_loop().time() - one.since_s
        missing = [level for level in one.levels if self._reached(level) < one.end]
        if len(one.answers) != 1:
            return "it is answered twice"
        answer = one.answers[0]
        if answer == "ok":
            if missing or (self.has_failed and one.levels):
                return f"it is acknowledged without being {missing}"
            hidden = "committed" in one.levels and self.group.log.visible_offset < one.end
            return "it cannot be read" if hidden else ""
        if answer == "STORE_FAILED":
            return "" if self.has_failed else "the store has not failed"
        if answer == "REPLICA_TIMEOUT":
            late = missing == ["committed"] and waited_s >= ACK_TIMEOUT_S - 1e-6
            return "" if late else f"{missing} after {waited_s} s is no time-out of the copies"
        return "" if answer == "FLUSH_DISK_TIMEOUT" and "synced" in missing else answer

    def check(self) -> None:
        """Nothing waits that need not, and nothing is visible that is not committed."""
        log, copies = self.group.log, self.group.copies
        assert self.faults == []
        assert log.visible_offset <= copies.commit_offset
        for one in self.asked:
            reached = all(self._reached(level) >= one.end for level in one.levels)
            assert one.answers or not reached, "it was not acknowledged"
        for kind in set(self.levels.values()):
            numbers = [one.number for one in self.answered if one.levels == kind and one.answers == ["ok"]]
            assert numbers == sorted(numbers), "answers come in the order of the appends"


@settings(max_examples=250, deadline=None)
@given(STEPS, st.sampled_from(["sync", "async"]), st.sampled_from(["leader", "replicated"]))
def test_nobody_is_acknowledged_before_both(
    steps: list[tuple[str, int]], flush_mode: FlushMode, ack: Ack
) -> None:
    async def scene() -> None:
        model = Model(flush_mode, ack)
        for step, value in steps:
            if step == "pause":
                await asyncio.sleep(value / 1000)
            model.step(step, value)
            model.check()
        await asyncio.sleep(30)
        model.check()
        assert all(len(one.answers) == 1 for one in model.asked), "nobody waits for ever"
        model.group.commit.close()

    run(scene())
