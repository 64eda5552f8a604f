"""Changes of the configuration wait for the commit of a replica group (cluster/config_store.py)."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.cluster_config.config_parts import START, created
from tests.unit.cluster_config.test_logged_table import Node
from trovemq_broker.cluster.config_store import STORE_ID_PATH, ConfigStore
from trovemq_broker.cluster_config.entries import Generation, Kind
from trovemq_broker.cluster_config.owner import Owner, OwnerWork
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset

pytestmark = pytest.mark.asyncio


class Commits:
    """The commit of a group, as a test decides it."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[PhysicalOffset, asyncio.Future[None]]] = asyncio.Queue()

    async def committed(self, end: PhysicalOffset) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((end, answer))
        await answer


class Bench:
    """A founded table, and one change of it in a task."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.found()
        self.commits = Commits()
        self.store = ConfigStore(self.node.table, self.node.files, lambda: "f" * 16, self.commits.committed)
        self.owner = Owner(self.node.table, "a", START)

    def begun(self, name: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._make(self.owner.begin([created(name)])))

    async def _make(self, work: OwnerWork) -> None:
        async with self.store.lock:
            try:
                await self.store.run(work)
            finally:
                self.owner.finish(work, START)

    def has(self, name: str) -> bool:
        return self.node.table.table.get(Kind.TOPIC, name) is not None


async def test_a_change_is_made_when_it_is_committed() -> None:
    bench = Bench()
    task = bench.begun("orders")
    end, answer = await bench.commits.asked.get()
    assert end == bench.node.store.end_offset
    assert not bench.has("orders")
    answer.set_result(None)
    await task
    assert bench.has("orders")


@pytest.mark.parametrize("spec", [errors.REPLICA_TIMEOUT, errors.FLUSH_DISK_TIMEOUT])
async def test_a_commit_that_takes_long_is_waited_for_again(spec: errors.ErrorSpec) -> None:
    bench = Bench()
    task = bench.begun("orders")
    _, answer = await bench.commits.asked.get()
    answer.set_exception(TroveError(spec, "it takes long"))
    asked = asyncio.create_task(bench.commits.asked.get())
    await asyncio.wait((task, asked), return_when=asyncio.FIRST_COMPLETED)
    assert not task.done()
    _, again = await asked
    again.set_result(None)
    await task
    assert bench.has("orders")


async def test_a_leader_that_ends_makes_no_change_any_more() -> None:
    bench = Bench()
    task = bench.begun("orders")
    _, answer = await bench.commits.asked.get()
    answer.set_exception(TroveError(errors.SERVICE_NOT_AVAILABLE, "this node leads no more"))
    with pytest.raises(TroveError) as raised:
        await task
    assert raised.value.in_doubt, "its followers may have it"
    assert not bench.has("orders")
    with pytest.raises(TroveError):
        bench.begun("bills")


async def test_a_stop_waits_for_no_commit() -> None:
    bench = Bench()
    task = bench.begun("orders")
    await bench.commits.asked.get()
    bench.store.end()
    with pytest.raises(TroveError) as raised:
        await task
    assert raised.value.fields["in_doubt"] == "true"
    assert not bench.has("orders")
    assert not bench.store.lock.locked()


async def test_a_caller_that_is_cancelled_continues_after_the_commit() -> None:
    bench = Bench()
    task = bench.begun("orders")
    _, answer = await bench.commits.asked.get()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    answer.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.has("orders")


async def test_the_id_of_the_groups_stores_is_the_one_in_the_log() -> None:
    bench = Bench()
    bench.node.files.write_atomic(STORE_ID_PATH, b"a" * 16)
    assert await bench.store.store_id() == "0123456789abcdef"
    promise = asyncio.create_task(bench.store.promise(Generation(5, "e" * 16), "c1"))
    _, answer = await bench.commits.asked.get()
    answer.set_result(None)
    await promise
    assert bench.node.table.promised.number == 5
