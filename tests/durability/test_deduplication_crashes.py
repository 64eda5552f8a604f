"""After every crash an id was stored once: none accepted twice, every acknowledged one there, replies true.

A real daemon is killed under producers that send known ids again: those of which no reply came, and others.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import trovemq
from tests.durability.verified_daemon import SMALL_FILES
from tests.support.trials import SOAK, Trials
from trovemq.receipts import SendReceipt
from trovemq.testing import BrokerProcess
from trovemq_proto.errors import TroveError

pytestmark = pytest.mark.slow

DAEMONS: Final = 5
DEFAULT_DAEMONS: Final = 1
KILLS: Final = 20 if SOAK else 3
PRODUCERS: Final = 3
QUEUES: Final = 2

Place = tuple[int, int, int]


@dataclass
class Reported:
    """The replies: for each id its place, and how many duplicates there were."""

    places: dict[str, Place] = field(default_factory=dict)
    duplicates: int = 0

    def add(self, receipt: SendReceipt) -> None:
        place = (receipt.queue_id, receipt.queue_offset, receipt.physical_offset)
        known = self.places.setdefault(receipt.unique_key, place)
        assert known == place, f"{receipt.unique_key} was reported at {known} and at {place}"
        self.duplicates += receipt.duplicate


async def produce(broker: BrokerProcess, number: int, reported: Reported, stop: asyncio.Event) -> None:
    """Each id is sent until a reply came, then now and then once more; its queue may be another one."""
    source = random.Random(number)
    count = 0
    async with trovemq.connect(broker.address, wait_ms=20_000) as client:
        while not stop.is_set():
            ids = [f"{number}-{each}" for each in range(count, count + source.randrange(1, 6))]
            count += len(ids)
            ids += source.choices(ids, k=source.randrange(3))
            if count > 20:
                ids += [f"{number}-{source.randrange(max(0, count - 60), count)}" for _ in range(2)]
            source.shuffle(ids)
            await send_until_known(client, broker, ids, reported, source, stop)


async def send_until_known(
    client: trovemq.Client,
    broker: BrokerProcess,
    ids: list[str],
    reported: Reported,
    source: random.Random,
    stop: asyncio.Event,
) -> None:
    while not stop.is_set():
        try:
            async with client.producer("orders", retry_in_doubt=bool(source.randrange(2))) as producer:
                receipts = await producer.send_batch(
                    [b"body of " + each.encode() for each in ids],
                    message_ids=ids,
                    queue_id=source.randrange(QUEUES),
                )
        except TroveError as error:
            if not (error.fields.get("in_doubt") or error.retriable):
                raise
            continue
        for receipt in receipts:
            reported.add(receipt)
        return


async def stored(broker: BrokerProcess) -> list[tuple[str, Place]]:
    found: list[tuple[str, Place]] = []
    async with trovemq.connect(broker.address, wait_ms=20_000) as client:
        for queue_id in range(QUEUES):
            async for message in client.pull("orders", queue_id=queue_id):
                unique_key = message.unique_key or ""
                assert message.body == b"body of " + unique_key.encode()
                found.append((unique_key, (queue_id, message.queue_offset, message.physical_offset)))
    return found


async def _kill_under_load(broker: BrokerProcess, source: random.Random) -> Reported:
    reported, stop = Reported(), asyncio.Event()
    async with trovemq.connect(broker.address, wait_ms=20_000) as client:
        await client.admin.create_topic("orders", queue_count=QUEUES, options={"deduplicate": "1h"})
    producers = [asyncio.create_task(produce(broker, number, reported, stop)) for number in range(PRODUCERS)]
    try:
        for _ in range(KILLS):
            wanted = len(reported.places) + source.randrange(4, 60)
            async with asyncio.timeout(90):
                while len(reported.places) < wanted and not any(task.done() for task in producers):
                    await asyncio.sleep(source.random() / 100)
            await asyncio.to_thread(broker.restart, kill=True)
    finally:
        stop.set()
        await asyncio.gather(*producers)
    return reported


def test_a_daemon_that_is_killed_again_and_again_accepts_no_duplicate(trials: Trials, tmp_path: Path) -> None:
    for number in trials.numbers(DAEMONS, default=DEFAULT_DAEMONS):
        mode = "ASYNC_FLUSH" if number % 2 else "SYNC_FLUSH"
        with trials.one(number) as source, BrokerProcess(flushDiskType=mode, **SMALL_FILES) as broker:
            reported = asyncio.run(_kill_under_load(broker, source))
            found = asyncio.run(stored(broker))
            places = dict(found)
            assert len(places) == len(found), "no id was stored twice"
            assert {name: places.get(name) for name in reported.places} == reported.places
            assert len(reported.places) >= 4 * KILLS
            assert reported.duplicates >= KILLS, "known ids were sent"
        trials.count("unique", "kills of a daemon that deduplicates", KILLS)
