"""The cost of asking who calls, and the effect of one user's storm on another's sends.

    single    sends at a time over one connection, with users and without, in turns; 64 at once, too
    tls       batches by TLS and plain, of one broker, in turns
    storms    p99 of one user's sends alone and beside another user's storm, in turns, with quotas and without

The storms are those of `bench.storms`. Each ratio is of one run, the median over its rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import trovemq
from bench import measure, storms
from bench.report import Report
from trovemq._certificates import HOSTS_DEFAULT, make_authority, make_server
from trovemq.testing import BrokerProcess, free_port
from trovemq_proto.tls import TlsOptions

ROUNDS: Final = 8
SINGLE_S: Final = 2.0
TLS_MESSAGES: Final = 100_000
PACE_S: Final = 0.005
ALONE_S: Final = 10.0
STORM_S_MAX: Final = 60.0
CREATIONS: Final = 100_000
CALLS_MAX: Final = 10_000_000
QUOTA: Final = trovemq.Quota(requests_per_s=50, calls_max=16, topics_max=100, query_ms_per_s=10)
ABOUT: Final = "Async flush, `trovemq` as the transport, client and broker on two processors.\n\n"


def _with_users(secret: str) -> dict[str, str]:
    return {
        "TROVEMQ_BROKER_INIT_AUTHENTICATION_USER": json.dumps({"username": "admin", "password": secret}),
        "TROVEMQ_BROKER_AUTHENTICATION_ENABLE": "true",
        "TROVEMQ_BROKER_AUTHORIZATION_ENABLE": "true",
    }


async def measure_users(report: Report, directory: Path, *, quick: bool) -> None:
    divisor = 4 if quick else 1
    await _single(report, directory, ROUNDS // divisor)
    await _tls(report, directory, ROUNDS // divisor, TLS_MESSAGES // divisor)
    for quota in (None, QUOTA):
        await _storms(report, directory / ("quotas" if quota else "none"), quota, divisor)


# --- costs ----------------------------------------------------------------------------------------------
async def _single(report: Report, directory: Path, rounds: int) -> None:
    secret = secrets.token_urlsafe()
    async with AsyncExitStack() as stack:
        brokers = {
            with_users: stack.enter_context(
                BrokerProcess(
                    store=directory / f"single-{with_users}",
                    environment=_with_users(secret) if with_users else {},
                    flushDiskType="ASYNC_FLUSH",
                )
            )
            for with_users in (True, False)
        }
        clients = {True: await _user(stack, brokers[True], secret, "alice")}
        clients[False] = await stack.enter_async_context(trovemq.connect(brokers[False].address))
        await clients[False].admin.create_topic(measure.TOPIC)
        for at_once in (1, 64):
            rates: dict[bool, list[float]] = {True: [], False: []}
            spent: dict[bool, list[float]] = {True: [], False: []}
            for number in range(-1, rounds):
                for with_users in (True, False) if number % 2 else (False, True):
                    before = measure.scheduled_seconds(brokers[with_users].pid)
                    count = await _sends(clients[with_users], at_once)
                    cost = measure.scheduled_seconds(brokers[with_users].pid) - before
                    if number >= 0:
                        rates[with_users].append(count / SINGLE_S)
                        spent[with_users].append(cost / count * 1e6)
            name = f"single sends, {at_once} at once"
            report.add(f"{name}, with users", median(rates[True]), "/s")
            report.add(f"{name}, with users / without", _ratio(rates), "x", at_least=0.9)
            report.add(f"{name}, with users / without: broker CPU", _ratio(spent), "x")


async def _sends(client: trovemq.Client, at_once: int) -> int:
    end, count, body = time.perf_counter() + SINGLE_S, 0, bytes(measure.BODY_SIZE)

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await client.send(measure.TOPIC, body)
            count += 1

    await asyncio.gather(*(work() for _ in range(at_once)))
    return count


async def _tls(report: Report, directory: Path, rounds: int, messages: int) -> None:
    now = datetime.now(UTC)
    authority = make_authority("bench", 1, now)
    pair = make_server(authority.certificate, authority.key, HOSTS_DEFAULT, 1, now)
    files = {"ca": authority.certificate, "certificate": pair.certificate, "key": pair.key}
    for name, content in files.items():
        (directory / name).write_bytes(content)
    address = f"127.0.0.1:{free_port()}"
    settings: dict[str, Any] = {"tls_listen": address}
    settings |= {f"tls_{name}": directory / name for name in ("certificate", "key")}
    rates: dict[bool, list[float]] = {True: [], False: []}
    tls = TlsOptions(ca=directory / "ca")
    with BrokerProcess(store=directory / "tls", flushDiskType="ASYNC_FLUSH", **settings) as broker:
        for number in range(-1, rounds):
            for by_tls in (True, False) if number % 2 else (False, True):
                to = (address, tls) if by_tls else (broker.address, None)
                produced = await measure.produce(
                    broker, messages, f"tls-{number + 1}-{by_tls}", to=to[0], tls=to[1]
                )
                if number >= 0:
                    rates[by_tls].append(produced.per_second)
    report.add("produce by TLS", median(rates[True]), "msg/s")
    report.add("produce by TLS / plain", _ratio(rates), "x", at_least=0.6)


# --- storms ---------------------------------------------------------------------------------------------
async def _storms(report: Report, directory: Path, quota: trovemq.Quota | None, divisor: int) -> None:
    secret = secrets.token_urlsafe()
    name = "with quotas" if quota is not None else "without quotas"
    goal: dict[str, float] = {} if quota is None else {"at_most": 1.2}
    async with AsyncExitStack() as stack:
        broker = stack.enter_context(
            BrokerProcess(store=directory, environment=_with_users(secret), flushDiskType="ASYNC_FLUSH")
        )
        alice = await _user(stack, broker, secret, "alice")
        mallory = await _mallory(stack, broker, secret, quota)
        for kind in storms.KINDS:
            alone, beside, counts = await _storm(broker, alice, mallory, kind, divisor)
            before, during = (quantiles(times, n=100)[98] * 1e3 for times in (alone, beside))
            report.add(f"sends alone, before {kind}, {name}: p99", before, "ms")
            report.add(f"sends beside a storm of {kind}, {name}: p99", during, "ms")
            report.add(f"storm of {kind}, {name}: p99 beside / alone", during / before, "x", **goal)
            for what, count in counts.items():
                report.add(f"storm of {kind}, {name}: calls {what}", count, "calls")


async def _storm(
    broker: BrokerProcess, alice: trovemq.Client, mallory: Mapping[str, str], kind: str, divisor: int
) -> tuple[list[float], list[float], dict[str, int]]:
    alone = await _paced(alice, ALONE_S / divisor, asyncio.Event())
    calls = CREATIONS // divisor if kind == "create" else CALLS_MAX
    seconds = (STORM_S_MAX if kind == "create" else 2 * ALONE_S) / divisor
    command = (sys.executable, "-m", "bench.storms", kind, broker.address, str(seconds), str(calls))
    over = asyncio.Event()
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, env={**os.environ, **mallory}
    )

    async def wait() -> bytes:
        output, _ = await process.communicate()
        over.set()
        return output

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(1)  # the process starts
    beside = await _paced(alice, seconds + 10, over)
    counts: dict[str, int] = json.loads(await waiting)
    await asyncio.sleep(1)
    again = await _paced(alice, ALONE_S / divisor, asyncio.Event())
    return alone + again, beside, counts


async def _paced(client: trovemq.Client, seconds: float, over: asyncio.Event) -> list[float]:
    """Seconds of each send, one at a time at a steady pace, until the time is over or the event is set."""
    times, body, end = [], bytes(256), time.perf_counter() + seconds
    while (started := time.perf_counter()) < end and not over.is_set():
        await client.send(measure.TOPIC, body)
        times.append(time.perf_counter() - started)
        await asyncio.sleep(PACE_S)
    return times


async def _mallory(
    stack: AsyncExitStack, broker: BrokerProcess, secret: str, quota: trovemq.Quota | None
) -> dict[str, str]:
    """The storm's user, with 20,000 messages to search and to receive; as variables."""
    admin = await stack.enter_async_context(
        trovemq.connect(broker.address, access_key="admin", secret_key=secret)
    )
    made = await admin.admin.users.create("mallory")
    await admin.admin.rules.allow("mallory", "All", "*")
    await admin.admin.create_topic(storms.TOPIC, 8)
    async with admin.producer(storms.TOPIC) as producer:
        for _ in range(20):
            await producer.send_batch([bytes(256)] * 1_000, tags=[storms.TAG] * 1_000)
    if quota is not None:
        await admin.admin.quotas.set("User:mallory", quota)
    return {"TROVEMQ_ACCESS_KEY": "mallory", "TROVEMQ_SECRET_KEY": made.secret_key}


async def _user(stack: AsyncExitStack, broker: BrokerProcess, secret: str, name: str) -> trovemq.Client:
    """A user who may send to the topic, which is made."""
    async with trovemq.connect(broker.address, access_key="admin", secret_key=secret) as admin:
        await admin.admin.create_topic(measure.TOPIC)
        made = await admin.admin.users.create(name)
        await admin.admin.rules.allow(name, "Pub", f"Topic:{measure.TOPIC}")
    return await stack.enter_async_context(
        trovemq.connect(broker.address, access_key=name, secret_key=made.secret_key)
    )


def _ratio(values: Mapping[bool, list[float]]) -> float:
    """Of each pair of rounds."""
    return median(one / two for one, two in zip(values[True], values[False], strict=True))
