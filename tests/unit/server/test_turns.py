"""Long work continues in steps, one of them in each iteration of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.support import fake_loop
from tests.support.fake_loop import fake_time
from trovemq_daemon import turns as turns_module
from trovemq_daemon.turns import Turns
from trovemq_store.engine.steps import Steps

pytestmark = fake_time


@pytest.fixture(autouse=True)
def every_step_takes_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(turns_module, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))


def counted(name: str, count: int, log: list[str]) -> Steps[str]:
    for _ in range(count):
        log.append(name)
        yield
    return name


async def test_the_result_of_the_steps_is_returned_and_their_error_raised() -> None:
    def fails() -> Steps[int]:
        yield
        raise ValueError("no")

    assert await Turns().run(counted("a", 3, [])) == "a"
    with pytest.raises(ValueError, match="no"):
        await Turns().run(fails())
    assert [page async for page in Turns().each(iter([1, 2, 3]))] == [1, 2, 3]


async def test_many_long_reads_at_once_took_a_turn_each_before_anybody_else() -> None:
    """With one lock for all of them, a pass of the loop has one step of long work, not one of each."""
    log: list[str] = []
    turns = Turns()
    works = [asyncio.create_task(turns.run(counted(str(n), 5, log))) for n in range(20)]
    most, seen = 0, 0
    while not all(work.done() for work in works):
        await asyncio.sleep(0)
        most, seen = max(most, len(log) - seen), len(log)
    assert most == 1
    assert len(log) == 100
    first = log[:20]
    assert sorted(first) == sorted(map(str, range(20))), "each had one before a second"


async def test_one_that_is_cancelled_lets_the_others_continue() -> None:
    def pages() -> Iterator[int]:
        yield from range(1_000_000)

    turns = Turns()

    async def read_all() -> None:
        async for _ in turns.each(pages()):
            pass

    endless = asyncio.create_task(read_all())
    await fake_loop.turns(5)
    endless.cancel()
    async with asyncio.timeout(1):
        assert await turns.run(counted("b", 3, [])) == "b"
