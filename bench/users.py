"""The cost of asking who calls, and the effect of one user's storm on another's sends.

    check     one check of access, with 201 rules
    single    sends at a time over one connection, with users and without, alternately; also 64 at once,
              of our client and of RocketMQ's protocol
    tls       batches by TLS and plain, of one broker, alternately
    storms    p99 of one user's sends alone, beside another user's storm, and beside the same storm at another
              broker, alternately, without quotas (once, for comparison) and with them

The storms are those of `bench.storms`. At another broker a storm takes the same processors, by its own
process and that broker's, but nothing of the loop of the broker that is measured: the ratio of both is the
share that the broker itself causes. Each ratio of costs is the median over its rounds; the p99 of a storm are
those of all its rounds. It takes less than seven minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import trovemq
import trovemq_rpc
from bench import access, measure, storms
from bench.report import Report, median_ratio
from trovemq._net.certificates import HOSTS_DEFAULT, make_authority, make_server
from trovemq.testing import BrokerProcess, free_port
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.tls import TlsOptions

Send = Callable[[], Awaitable[object]]
ROUNDS: Final = 7
SINGLE_S: Final = 1.0
TLS_MESSAGES: Final = 100_000
PACE_S: Final = 0.005
ALONE_S: Final = 4.0
STORM_S: Final = 7.0
STORM_ROUNDS: Final = 3
CALLS: Final = 100_000  # of a storm; all of them are tried only where there is no quota
QUOTA: Final = trovemq.Quota(
    requests_per_s=50, bytes_out_per_s=64 << 10, calls_max=16, topics_max=100, query_ms_per_s=5
)
ABOUT: Final = "Async flush, `trovemq` as the transport, client and broker on a processor each.\n\n"


def _with_users(secret: str) -> dict[str, str]:
    return {
        "TROVEMQ_BROKER_INIT_AUTHENTICATION_USER": json.dumps({"username": "admin", "password": secret}),
        "TROVEMQ_BROKER_AUTHENTICATION_ENABLE": "true",
        "TROVEMQ_BROKER_AUTHORIZATION_ENABLE": "true",
    }


async def measure_users(report: Report, directory: Path, *, quick: bool) -> None:
    divisor = 4 if quick else 1
    _check(report)
    await _single(report, directory, ROUNDS // divisor)
    await _tls(report, directory, ROUNDS // divisor, TLS_MESSAGES // divisor)
    await _storms(report, directory / "none", None, ALONE_S / divisor, STORM_S / divisor, 1)
    await _storms(report, directory / "quotas", QUOTA, ALONE_S / divisor, STORM_S / divisor, STORM_ROUNDS)


# --- costs ----------------------------------------------------------------------------------------------
def _check(report: Report) -> None:
    for name, call in access.checks().items():
        report.add(name, access.microseconds(call, 2_000), "us", at_most=2)


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
        processors = os.sched_getaffinity(0)
        stack.callback(measure.run_on, os.getpid(), processors)
        measure.run_on(os.getpid(), {min(processors)})
        for broker in brokers.values():
            measure.run_on(broker.pid, {max(processors)})
        raw = {
            with_users: await _raw_send(stack, broker.address, secret if with_users else "")
            for with_users, broker in brokers.items()
        }
        body = bytes(measure.BODY_SIZE)
        sends: dict[bool, Send] = {
            with_users: partial(client.send, measure.TOPIC, body) for with_users, client in clients.items()
        }
        for name, at_once, send in (
            ("single sends, 1 at once", 1, sends),
            ("single sends, 64 at once", 64, sends),
            ("SendMessage, 64 at once", 64, raw),
        ):
            rates: dict[bool, list[float]] = {True: [], False: []}
            spent: dict[bool, list[float]] = {True: [], False: []}
            for number in range(-1, rounds):
                for with_users in (True, False) if number % 2 else (False, True):
                    before = measure.scheduled_seconds(brokers[with_users].pid)
                    count = await _sends(send[with_users], at_once)
                    cost = measure.scheduled_seconds(brokers[with_users].pid) - before
                    if number >= 0:
                        rates[with_users].append(count / SINGLE_S)
                        spent[with_users].append(cost / count * 1e6)
            report.add(f"{name}, with users", median(rates[True]), "/s")
            report.add(
                f"{name}, with users / without", median_ratio(rates[True], rates[False]), "x", at_least=0.9
            )
            report.add(
                f"{name}, with users / without: broker CPU", median_ratio(spent[True], spent[False]), "x"
            )


async def _raw_send(stack: AsyncExitStack, address: str, secret: str) -> Send:
    """SendMessage of RocketMQ's protocol, signed by its admin as its clients do where there is a secret."""
    channel = await stack.enter_async_context(trovemq_rpc.insecure_channel(address))
    send = channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
    message = v2.Message(topic=v2.Resource(name=measure.TOPIC), body=bytes(measure.BODY_SIZE))
    message.system_properties.message_id = "01" + "0" * 32
    request = service.SendMessageRequest(messages=[message]).SerializeToString()
    metadata = storms.rocketmq_metadata("admin", secret) if secret else storms.CLIENT_ID

    async def sent() -> None:
        reply = service.SendMessageResponse.FromString(await send(request, metadata=metadata))
        assert reply.status.code == v2.OK, reply.status.message

    return sent


async def _sends(send: Send, at_once: int) -> int:
    end, count = time.perf_counter() + SINGLE_S, 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await send()
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
    report.add("produce by TLS / plain", median_ratio(rates[True], rates[False]), "x", at_least=0.6)


# --- storms ---------------------------------------------------------------------------------------------
async def _storms(
    report: Report,
    directory: Path,
    quota: trovemq.Quota | None,
    alone_s: float,
    storm_s: float,
    rounds: int,
) -> None:
    secret = secrets.token_urlsafe()
    name = "with quotas" if quota is not None else "without quotas"
    goal: dict[str, float] = {} if quota is None else {"at_most": 1.2}
    async with AsyncExitStack() as stack:
        broker, other = (
            stack.enter_context(
                BrokerProcess(store=store, environment=_with_users(secret), flushDiskType="ASYNC_FLUSH")
            )
            for store in (directory, directory.with_name(f"{directory.name}-other"))
        )
        alice = await _user(stack, broker, secret, "alice")
        mallory = await _mallory(stack, broker, secret, quota)
        others_mallory = await _mallory(stack, other, secret, quota)
        for kind in storms.KINDS:
            alone, beside, elsewhere, counts = list[float](), list[float](), list[float](), Counter[str]()
            for _ in range(rounds):
                alone += await _paced(alice, alone_s, asyncio.Event())
                times, found = await _storm(broker, alice, mallory, kind, storm_s)
                beside += times
                counts.update(found)
                elsewhere += (await _storm(other, alice, others_mallory, kind, storm_s))[0]
            alone += await _paced(alice, alone_s, asyncio.Event())
            before, during, control = (
                quantiles(times, n=100)[98] * 1e3 for times in (alone, beside, elsewhere)
            )
            report.add(f"sends alone, before {kind}, {name}: p99", before, "ms")
            report.add(f"sends beside a storm of {kind}, {name}: p99", during, "ms")
            report.add(f"storm of {kind}, {name}: p99 beside / alone", during / before, "x", **goal)
            report.add(f"storm of {kind}, {name}: p99 at another broker / alone", control / before, "x")
            report.add(f"storm of {kind}, {name}: p99 beside / at another broker", during / control, "x")
            for what, count in counts.items():
                report.add(f"storm of {kind}, {name}: calls {what}", count, "calls")


async def _storm(
    broker: BrokerProcess, alice: trovemq.Client, mallory: Mapping[str, str], kind: str, seconds: float
) -> tuple[list[float], dict[str, int]]:
    command = (sys.executable, "-m", "bench.storms", kind, broker.address, str(seconds), str(CALLS))
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
    return beside, counts


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
