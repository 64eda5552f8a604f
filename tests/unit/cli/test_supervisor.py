"""The supervisor of a local cluster, with children in memory and a fake time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from tests.support.fake_loop import fake_time, turns
from trovemq.cli.local import supervisor
from trovemq.cli.local.members import Member
from trovemq.cli.local.supervisor import NOTICE_S, RESTARTS_MAX, STABLE_S, STOP_S_MAX, Readiness, Supervisor
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

NAMES = Member("nameserver", "nameserver", None, 1, 2)
FIRST = Member("broker", "broker-1", "broker-1", 3, 4)
SECOND = Member("broker", "broker-2", "broker-2", 5, 6)
STAGES = ((NAMES,), (FIRST, SECOND))


class FakeChild:
    """Ends cleanly at SIGTERM, unless it is deaf."""

    def __init__(self, member: Member, pid: int, signals: list[tuple[str, str]], deaf: bool) -> None:
        self.member = member
        self.pid = pid
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._signals = signals
        self._deaf = deaf

    async def wait(self) -> int:
        return await asyncio.shield(self.code)

    def send(self, number: signal.Signals) -> None:
        if self.code.done():
            return
        self._signals.append((self.member.name, number.name))
        if number is signal.SIGKILL:
            self.end(-number)
        elif not self._deaf:
            self.end(0)

    def end(self, code: int) -> None:
        self.code.set_result(code)


@dataclass
class FakeCluster:
    """Launcher and reports."""

    unready: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    deaf: set[str] = field(default_factory=set)
    on_launch: Callable[[FakeChild], None] = lambda _: None
    children: list[FakeChild] = field(default_factory=list)
    starts: list[tuple[str, float]] = field(default_factory=list)
    signals: list[tuple[str, str]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    tended: int = 0

    def launch(self, member: Member) -> FakeChild:
        pid = 100 + len(self.children)
        child = FakeChild(member, pid, self.signals, member.name in self.deaf)
        self.children.append(child)
        self.starts.append((member.name, asyncio.get_running_loop().time()))
        self.on_launch(child)
        return child

    async def ready(self, member: Member) -> Readiness:
        if member.name in self.removed:
            return Readiness(is_ready=False, why="it was removed", never=True)
        is_ready = member.name not in self.unready
        return Readiness(is_ready, "" if is_ready else "it waits for its owner")

    def last_words(self, member: Member) -> str:
        return f"log of {member.name}"

    def tend(self) -> None:
        self.tended += 1

    def started(self, member: Member, pid: int) -> None:
        self.shown.append(f"{member.name} {pid}")

    def all_ready(self) -> None:
        self.shown.append("ready")

    def serves_again(self, member: Member, pid: int) -> None:
        self.shown.append(f"{member.name} {pid} again")

    def trouble(self, member: Member, text: str) -> None:
        self.troubles.append(text)

    def left_out(self, member: Member, text: str) -> None:
        self.troubles.append(f"left out: {text}")

    def last(self, member: Member) -> FakeChild:
        return next(child for child in reversed(self.children) if child.member is member)

    async def until(self, shown: str) -> None:
        while shown not in self.shown:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    cluster: FakeCluster, stages: Sequence[Sequence[Member]] = STAGES
) -> AsyncIterator[tuple[Supervisor, asyncio.Task[bool]]]:
    found = Supervisor(stages, cluster, cluster)
    run = asyncio.create_task(found.run())
    try:
        yield found, run
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


@pytest.fixture(autouse=True)
def _longest_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = supervisor.DELAYS
    monkeypatch.setattr(supervisor, "DELAYS", replace(delays, uniform=lambda: 1.0))


@fake_time
async def test_a_stage_starts_when_the_one_before_is_ready() -> None:
    cluster = FakeCluster(unready={"nameserver"})
    async with running(cluster) as (_, _run):
        await asyncio.sleep(1)
        assert cluster.shown == ["nameserver 100"]
        cluster.unready = {"broker-2"}
        await asyncio.sleep(1)
        assert cluster.shown == ["nameserver 100", "broker-1 101", "broker-2 102"]
        cluster.unready = set()
        await cluster.until("ready")
        assert cluster.troubles == []


@fake_time
async def test_a_signal_stops_brokers_before_the_nameserver() -> None:
    cluster = FakeCluster()
    async with running(cluster) as (found, run):
        await cluster.until("ready")
        found.on_signal()
        assert await run
    assert cluster.signals == [(name, "SIGTERM") for name in ("broker-1", "broker-2", "nameserver")]
    assert not found.at_once


@fake_time
async def test_a_signal_while_a_member_starts_stops_what_runs() -> None:
    cluster = FakeCluster(unready={"nameserver"})
    async with running(cluster) as (found, run):
        await turns()
        found.on_signal()
        assert await run
    assert cluster.signals == [("nameserver", "SIGTERM")]


@fake_time
async def test_a_member_that_does_not_stop_is_killed() -> None:
    cluster = FakeCluster(deaf={"broker-2"})
    async with running(cluster) as (found, run):
        await cluster.until("ready")
        began = asyncio.get_running_loop().time()
        found.on_signal()
        assert not await run
        assert asyncio.get_running_loop().time() - began == pytest.approx(STOP_S_MAX)
    assert cluster.signals[-2:] == [("broker-2", "SIGKILL"), ("nameserver", "SIGTERM")]
    assert cluster.troubles == ["broker-2 was ended by SIGKILL"]


@fake_time
async def test_a_second_signal_kills_all_at_once() -> None:
    cluster = FakeCluster(deaf={"broker-1", "broker-2", "nameserver"})
    async with running(cluster) as (found, run):
        await cluster.until("ready")
        began = asyncio.get_running_loop().time()
        found.on_signal()
        await turns()
        found.on_signal()
        assert not await run
        assert asyncio.get_running_loop().time() == began
    assert found.at_once
    assert {name for name, number in cluster.signals if number == "SIGKILL"} == {
        "broker-1",
        "broker-2",
        "nameserver",
    }


@fake_time
async def test_a_killed_broker_is_started_again_and_shown() -> None:
    cluster = FakeCluster()
    async with running(cluster) as (_, _run):
        await cluster.until("ready")
        cluster.last(FIRST).end(-signal.SIGKILL)
        await cluster.until("broker-1 103 again")
        assert cluster.troubles == ["broker-1 was ended by SIGKILL; it is started again in 0.2 s"]
        assert cluster.shown.count("ready") == 1


@fake_time
async def test_a_broker_that_was_removed_came_back_at_once() -> None:
    cluster = FakeCluster()
    async with running(cluster) as (found, run):
        await cluster.until("ready")
        cluster.last(FIRST).end(0)
        await asyncio.sleep(100)
        assert [name for name, _ in cluster.starts].count("broker-1") == 1
        assert cluster.troubles == [
            "broker-1 has stopped by a command, and stays stopped until the next start of all"
        ]
        assert not cluster.last(SECOND).code.done()
        found.on_signal()
        assert await run, "that is no fault"
        assert [name for name, _ in cluster.signals] == ["broker-2", "nameserver"]


@fake_time
async def test_the_run_ends_when_the_last_member_was_stopped() -> None:
    cluster = FakeCluster()
    async with running(cluster) as (_, run):
        await cluster.until("ready")
        for member in (FIRST, SECOND, NAMES):
            cluster.last(member).end(0)
        assert await run


@fake_time
async def test_a_signal_without_a_name_ended_the_whole_cluster() -> None:
    cluster = FakeCluster()
    async with running(cluster) as (_, _run):
        await cluster.until("ready")
        cluster.last(FIRST).end(-(signal.SIGRTMIN + 6))
        await asyncio.sleep(1)
        assert cluster.shown[-1] == "broker-1 103 again"
        assert "broker-1 was ended by signal 40;" in cluster.troubles[0]


@fake_time
async def test_delays_double_while_a_member_ends_soon() -> None:
    cluster = FakeCluster()
    async with running(cluster) as (_, _run):
        await cluster.until("ready")
        for lived_s, delay_s in ((0, 0.2), (0, 0.4), (0, 0.8), (STABLE_S + 1, 0.2), (0, 0.4)):
            child = cluster.last(FIRST)
            await asyncio.sleep(lived_s)
            child.end(1)
            while cluster.last(FIRST) is child:
                await asyncio.sleep(0.01)
            assert f"in {delay_s:.1f} s" in cluster.troubles[-1]
            await cluster.until(f"broker-1 {cluster.last(FIRST).pid} again")


@fake_time
async def test_a_member_that_never_starts_again_is_given_up() -> None:
    cluster = FakeCluster()
    async with running(cluster) as (found, run):
        await cluster.until("ready")
        cluster.on_launch = lambda child: child.end(5) if child.member is FIRST else None
        cluster.unready = {"broker-1"}
        cluster.last(FIRST).end(5)
        await asyncio.sleep(1_000)
        assert [name for name, _ in cluster.starts].count("broker-1") == 1 + RESTARTS_MAX
        assert cluster.troubles[-1] == (
            f"broker-1 stays stopped, {RESTARTS_MAX} starts failed: log of broker-1"
        )
        assert not cluster.last(SECOND).code.done()
        found.on_signal()
        assert not await run


@fake_time
async def test_the_run_ends_when_every_member_was_given_up() -> None:
    cluster = FakeCluster()
    async with running(cluster, [(FIRST,)]) as (_, run):
        await cluster.until("ready")
        cluster.on_launch = lambda child: child.end(5)
        cluster.unready = {"broker-1"}
        cluster.last(FIRST).end(5)
        with pytest.raises(TroveError, match="every daemon has been given up") as caught:
            await run
    assert caught.value.spec is errors.DAEMON_FAILED


@fake_time
async def test_a_first_start_that_exits_ends_the_run_and_stops_all() -> None:
    cluster = FakeCluster(unready={"broker-2"})
    cluster.on_launch = lambda child: child.end(2) if child.member is SECOND else None
    async with running(cluster) as (_, run):
        with pytest.raises(TroveError, match="broker-2 ended with exit code 2: log of broker-2"):
            await run
    assert cluster.signals == [("broker-1", "SIGTERM"), ("nameserver", "SIGTERM")]


@fake_time
async def test_a_broker_killed_during_its_first_start_is_started_again() -> None:
    cluster = FakeCluster(unready={"broker-2"})
    async with running(cluster) as (_, _run):
        await cluster.until("broker-2 102")
        cluster.last(SECOND).end(-signal.SIGKILL)
        cluster.unready = set()
        await cluster.until("ready")
        assert cluster.shown[-2:] == ["broker-2 103", "ready"]


@fake_time
async def test_a_start_waited_for_ever_for_a_broker_that_is_killed_each_time() -> None:
    cluster = FakeCluster(unready={"broker-2"})
    cluster.on_launch = lambda child: child.end(-signal.SIGKILL) if child.member is SECOND else None
    async with running(cluster) as (_, run):
        with pytest.raises(TroveError, match=f"broker-2: {RESTARTS_MAX} starts failed: log of broker-2"):
            await asyncio.wait_for(run, 1_000)


@fake_time
async def test_a_start_waited_for_ever_for_a_broker_that_is_never_ready() -> None:
    cluster = FakeCluster(unready={"broker-2"})
    async with running(cluster) as (_, run):
        with pytest.raises(TroveError, match="broker-2 was not ready in 300 s: log of broker-2"):
            await asyncio.wait_for(run, 1_000)


@fake_time
async def test_a_start_waited_five_minutes_for_a_broker_that_was_removed() -> None:
    cluster = FakeCluster(removed={"broker-2"})
    async with running(cluster) as (found, run):
        await cluster.until("ready")
        assert cluster.troubles == ["left out: broker-2 stays stopped: it was removed"]
        assert cluster.signals == [("broker-2", "SIGTERM")]
        found.on_signal()
        assert await run
    assert [name for name, _ in cluster.starts] == ["nameserver", "broker-1", "broker-2"]


@fake_time
async def test_a_broker_that_hears_late_that_it_was_removed_ran_on() -> None:
    cluster = FakeCluster()
    async with running(cluster) as (_, _run):
        await cluster.until("ready")
        cluster.removed = {"broker-2"}
        await asyncio.sleep(STABLE_S)
        assert cluster.troubles == ["left out: broker-2 stays stopped: it was removed"]


@fake_time
async def test_a_cluster_whose_brokers_were_all_removed_ends() -> None:
    cluster = FakeCluster(removed={"nameserver", "broker-1", "broker-2"})
    async with running(cluster) as (_, run):
        assert await asyncio.wait_for(run, 10)


@fake_time
async def test_a_start_that_waited_long_did_not_say_why() -> None:
    cluster = FakeCluster(unready={"broker-2"})
    async with running(cluster) as (_, _run):
        await asyncio.sleep(NOTICE_S - 1)
        assert cluster.troubles == []
        await asyncio.sleep(2 * NOTICE_S)
        assert cluster.troubles == ["broker-2 is not ready yet: it waits for its owner"]


@fake_time
async def test_a_member_that_is_not_ready_in_time_is_killed() -> None:
    cluster = FakeCluster()
    async with running(cluster) as (_, _run):
        await cluster.until("ready")
        cluster.unready = {"broker-1"}
        cluster.last(FIRST).end(1)
        await asyncio.sleep(supervisor.READY_S_MAX + 1)
        assert cluster.signals == [("broker-1", "SIGKILL")]


@fake_time
async def test_a_reader_that_goes_away_stops_all() -> None:
    class Closed(FakeCluster):
        def serves_again(self, member: Member, pid: int) -> None:
            raise BrokenPipeError

    cluster = Closed()
    async with running(cluster) as (_, run):
        await cluster.until("ready")
        cluster.last(FIRST).end(-signal.SIGKILL)
        with pytest.raises(BrokenPipeError):
            await run
    assert {name for name, _ in cluster.signals} == {"broker-1", "broker-2", "nameserver"}


@fake_time
async def test_a_fork_that_fails_counts_as_a_failed_start() -> None:
    cluster = FakeCluster()

    def fail(child: FakeChild) -> None:
        cluster.on_launch = lambda _: None
        raise OSError(11, "Resource temporarily unavailable")

    async with running(cluster) as (_, _run):
        await cluster.until("ready")
        cluster.on_launch = fail
        cluster.last(FIRST).end(-signal.SIGKILL)
        await cluster.until("broker-1 104 again")
        assert cluster.troubles[-1].startswith("broker-1 cannot be started: Resource temporarily unavailable")


@fake_time
async def test_logs_are_tended_while_it_serves() -> None:
    cluster = FakeCluster()
    async with running(cluster) as (_, _run):
        await cluster.until("ready")
        await asyncio.sleep(2.5 * supervisor.TEND_S)
        assert cluster.tended == 2
