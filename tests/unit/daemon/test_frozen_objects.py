"""Garbage collections skip the objects of many topics."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.support.fake_loop import run
from trovemq_broker.maintenance import background


def counts_when_frozen(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The counts of topics at which objects were frozen, each after a collection."""
    steps: list[str] = []
    frozen: list[int] = []
    present = counts[0]

    def freeze() -> None:
        assert steps.pop() == "collect"
        frozen.append(present)

    async def scenario() -> None:
        nonlocal present
        task = asyncio.create_task(background.freeze_lasting_objects(lambda: present))
        for count in counts:
            present = count
            await asyncio.sleep(background.FREEZE_POLL_S + 0.1)
        task.cancel()
        await asyncio.wait([task])

    with monkeypatch.context() as patch:
        patch.setattr(gc, "collect", lambda: steps.append("collect"))
        patch.setattr(gc, "freeze", freeze)
        run(scenario())
    return frozen


def test_with_10_000_topics_a_collection_stopped_everybody_for_50_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [0, 900, 1_000, 1_900, 4_000, 7_000, 10_000, 10_000]
    assert counts_when_frozen(counts, monkeypatch) == [1_000, 4_000, 10_000]


def test_topics_that_come_and_go_are_not_frozen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle that is frozen with them would stay, each time."""
    assert counts_when_frozen([1_000, 0, 1_500, 0, 1_500], monkeypatch) == []
    assert counts_when_frozen([0, 2_000, 0, 2_000, 0, 3_900], monkeypatch) == [2_000]
