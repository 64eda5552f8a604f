"""The same single sends to ActiveMQ with KahaDB and to the broker: persistent, 1 KiB, each synced before its
acknowledgement, with duplicate detection on both sides.

ActiveMQ takes them over STOMP with a receipt each. Its look-up is STOMP's: a browse of the queue with a
selector, which reads the queue's messages one after another.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import trovemq
from bench.report import Report
from bench.trees import activemq
from bench.trees.producing import DEDUPLICATE
from bench.trees.stomp import StompClient, StompError
from trovemq.testing import BrokerProcess

BODY = random.Random(1).randbytes(1024)
TOPIC = "beside"
MESSAGES = 20_000
ONE_BY_ONE = 1_000
IN_FLIGHT = 64
CONNECTIONS = 8
LOOKUPS = 20
SEND_S_MAX = 20.0
BROWSE_S_MAX = 20.0
SETTINGS: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 28, "mappedFileSizeConsumeQueue": 6_000_000}

Send = Callable[[str], Awaitable[object]]
"""Sends a message with this id."""


async def measure_beside(report: Report, directory: Path, *, quick: bool) -> None:
    """ActiveMQ first, then the broker. Where ActiveMQ is missing or fails, a note says so."""
    messages = MESSAGES // (10 if quick else 1)
    if why := activemq.missing():
        report.notes.append(f"ActiveMQ with KahaDB was not measured: {why}")
    else:
        try:
            await _measure_activemq(report, directory / "activemq", messages)
        except (StompError, TimeoutError) as error:
            report.notes.append(f"ActiveMQ with KahaDB was not measured to the end: {error!r}"[:500])
    await _measure_broker(report, directory / "broker", messages)


async def _measure_activemq(report: Report, directory: Path, messages: int) -> None:
    name = f"ActiveMQ {activemq.version()}, KahaDB, STOMP"
    with activemq.ActiveMQ(directory) as server:
        client = await server.connect()
        await _timed(_stomp_sends([client], "warm"), _ids(messages // 4))
        empty = sum(server.stored_bytes)
        sends = _stomp_sends([client], TOPIC)
        ids = _ids(messages)
        rate, sent = await _timed(sends, ids)
        report.add(f"{name}: one connection, {IN_FLIGHT} in flight", rate, "msg/s")
        journal, index = server.stored_bytes
        report.add(f"{name}: on disk a message", (journal + index - empty) / sent, "B")
        rate, _ = await _timed(sends, _ids(ONE_BY_ONE), in_flight=1)
        report.add(f"{name}: one by one", rate, "msg/s")
        others = [await server.connect() for _ in range(CONNECTIONS)]
        rate, _ = await _timed(_stomp_sends(others, "many"), _ids(messages))
        report.add(f"{name}: {CONNECTIONS} connections, {IN_FLIGHT} in flight", rate, "msg/s")
        await _look_up_by_browse(report, name, client, ids[:sent])
        for connection in (client, *others):
            await connection.close()


async def _look_up_by_browse(report: Report, name: str, client: StompClient, ids: Sequence[str]) -> None:
    """By the JMSMessageID, which a sender over STOMP does not get: a browse of the whole queue finds it, and
    brings the queue's messages into memory, without which a browse with a selector found none."""
    started = time.perf_counter()
    frames = await client.browse(TOPIC, None, BROWSE_S_MAX)
    taken = time.perf_counter() - started
    report.add(f"{name}: browse of the whole queue", len(frames) / taken, "msg/s")
    message_ids = {frame.headers["ownid"]: frame.headers["message-id"] for frame in frames}
    times, missed = [], 0
    for text in random.Random(3).sample(ids, LOOKUPS):
        if text not in message_ids:
            missed += 1
            continue
        started = time.perf_counter()
        found = await client.browse(TOPIC, f"JMSMessageID = '{message_ids[text]}'", BROWSE_S_MAX)
        times.append(time.perf_counter() - started)
        missed += [frame.headers["ownid"] for frame in found] != [text]
    if len(times) > 1:
        report.add_latency(f"{name}: browse for one JMSMessageID, {len(frames):,} in the queue", times)
    if missed:
        report.notes.append(f"{name}: {missed} of {LOOKUPS} messages were not found by a browse")


def _stomp_sends(clients: Sequence[StompClient], queue: str) -> Send:
    turns = deque(clients)

    async def send(text: str) -> None:
        turns.rotate()
        await turns[0].send(queue, BODY, {"ownid": text})

    return send


async def _measure_broker(report: Report, directory: Path, messages: int) -> None:
    name = "trovemq, deduplicated, sync flush"
    with BrokerProcess(store=directory, flushDiskType="SYNC_FLUSH", **SETTINGS) as broker:
        async with trovemq.connect(broker.address) as client:
            for topic in ("warm", TOPIC):
                await client.admin.create_topic(topic, options=DEDUPLICATE)

            def sends(topic: str) -> Send:
                return lambda text: client.send(topic, BODY, message_id=text)

            await _timed(sends("warm"), _ids(messages // 4))
            ids = _ids(messages)
            first = (await client.send(TOPIC, BODY)).physical_offset
            rate, sent = await _timed(sends(TOPIC), ids)
            report.add(f"{name}: client.send, {IN_FLIGHT} in flight", rate, "msg/s")
            last = (await client.send(TOPIC, BODY)).physical_offset
            log = (last - first) / (sent + 1)
            rate, _ = await _timed(sends(TOPIC), _ids(ONE_BY_ONE), in_flight=1)
            report.add(f"{name}: client.send, one by one", rate, "msg/s")
            while (await client.search(TOPIC, message_id=ids[0])).lag_bytes:
                await asyncio.sleep(0.1)
            times = []
            for text in random.Random(3).sample(ids[:sent], LOOKUPS):
                started = time.perf_counter()
                answer = await client.search(TOPIC, message_id=text)
                times.append(time.perf_counter() - started)
                assert len(answer.messages) == 1, text
            report.add_latency(f"{name}: client.search for one id", times)
            stored = sent + messages // 4 + ONE_BY_ONE
            trees = (directory / "trovemq/trees/data.mdb").stat().st_blocks * 512 / stored
        report.add(f"{name}: on disk a message, log and consume queue", log + 20, "B")
        report.add(f"{name}: on disk a message, trees", trees, "B")


async def _timed(send: Send, ids: Sequence[str], in_flight: int = IN_FLIGHT) -> tuple[float, int]:
    """Messages a second, and how many of them were sent: no more than SEND_S_MAX allows."""
    waiting = iter(ids)
    sent = 0
    started = time.perf_counter()

    async def worker() -> None:
        nonlocal sent
        for text in waiting:
            await send(text)
            sent += 1
            if time.perf_counter() - started > SEND_S_MAX:
                return

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return sent / (time.perf_counter() - started), sent


def _ids(count: int) -> list[str]:
    return [f"{random.getrandbits(128):032x}" for _ in range(count)]
