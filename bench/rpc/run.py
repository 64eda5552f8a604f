"""Our channel and server beside grpc.aio's and a bare TCP echo on uvloop; both ends share the processors.

Ratios are of the same run, and where a machine is shared with others the processor times say more
than the clock.
"""

from __future__ import annotations

import asyncio
import datetime
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import trovemq_rpc as rpc
from bench.report import Report
from bench.rpc.server import LARGE, SERVICE

ABOUT = (
    "One client process, one server process, both on uvloop, on this machine's processors together. "
    "`callback`: the handler gets all calls of a turn at once; else one task a call, as in grpc.aio."
)
BODY = b"x" * 1024
WARM = 300
ONE_AT_A_TIME = 3_000
IN_FLIGHT = 64
CALLS_EACH = 400
STREAM_MESSAGES = 200
STREAM_MESSAGE_SIZE = 1 << 20


@contextmanager
def process(kind: str, tls: list[str]) -> Any:
    command = [sys.executable, "-m", "bench.rpc.server", kind]
    if tls:
        command += ["--tls", *tls]
    running = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert running.stdout is not None
        yield int(running.stdout.readline())
    finally:
        running.terminate()
        running.wait()


@asynccontextmanager
async def channel_to(kind: str, tls: list[str]) -> AsyncIterator[Any]:
    with process(kind, tls) as port:
        target = f"127.0.0.1:{port}"
        options = [*LARGE, ("grpc.ssl_target_name_override", "localhost")]
        root = Path(tls[1]).read_bytes() if tls else b""
        if kind == "native":
            if tls:
                channel: Any = rpc.secure_channel(target, rpc.ssl_channel_credentials(root), options)
            else:
                channel = rpc.insecure_channel(target, options)
        else:
            import grpc

            if tls:
                channel = grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(root), options)
            else:
                channel = grpc.aio.insecure_channel(target, options)
        async with channel:
            yield channel


async def one_at_a_time(call: Callable[[bytes], Awaitable[Any]], count: int) -> float:
    """The median, in microseconds."""
    for _ in range(WARM):
        await call(BODY)
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        await call(BODY)
        times.append(time.perf_counter() - begun)
    return median(times) * 1e6


async def in_flight(channel: Any, method: str, each: int) -> tuple[float, float, float]:
    """Calls a second, and microseconds of the client's and the server's processor a call."""
    call = channel.unary_unary(f"/{SERVICE}/{method}")
    cpu = channel.unary_unary(f"/{SERVICE}/Cpu")

    async def calls() -> None:
        for _ in range(each):
            await call(BODY)

    await asyncio.gather(*(calls() for _ in range(IN_FLIGHT)))
    server_before = float(await cpu(b""))
    client_before, begun = time.process_time(), time.perf_counter()
    await asyncio.gather(*(calls() for _ in range(IN_FLIGHT)))
    seconds, client = time.perf_counter() - begun, time.process_time() - client_before
    server = float(await cpu(b"")) - server_before
    count = IN_FLIGHT * each
    return count / seconds, client / count * 1e6, server / count * 1e6


async def streamed(channel: Any, count: int) -> tuple[float, float]:
    """Bytes a second of a stream of 1 MiB messages, to the server and from it."""
    message = bytes(STREAM_MESSAGE_SIZE)
    sink = channel.stream_unary(f"/{SERVICE}/Sink")
    source = channel.unary_stream(f"/{SERVICE}/Source")
    rates = []
    for _ in range(2):  # the first warms up
        begun = time.perf_counter()
        await sink(iter([message] * count))
        up = time.perf_counter() - begun
        begun = time.perf_counter()
        async for _message in source(b"%d,%d" % (count, STREAM_MESSAGE_SIZE)):
            pass
        rates.append((up, time.perf_counter() - begun))
    up, down = rates[1]
    size = count * STREAM_MESSAGE_SIZE
    return size / up, size / down


async def bare_tcp(count: int) -> float:
    """The median of an echo without any protocol, on the same loop."""

    class Client(asyncio.Protocol):
        waiting: asyncio.Future[None] | None = None

        def data_received(self, _data: bytes) -> None:
            assert self.waiting is not None
            self.waiting.set_result(None)

    with process("tcp", []) as port:
        loop = asyncio.get_running_loop()
        transport, client = await loop.create_connection(Client, "127.0.0.1", port)

        async def call(body: bytes) -> None:
            client.waiting = loop.create_future()
            transport.write(body)
            await client.waiting

        try:
            return await one_at_a_time(call, count)
        finally:
            transport.close()


def self_signed(directory: Path) -> list[str]:
    """Paths of a key and its certificate for localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = [directory / "key.pem", directory / "certificate.pem"]
    paths[0].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    paths[1].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return [str(path) for path in paths]


async def measure_kind(report: Report, kind: str, tls: list[str], *, divisor: int) -> None:
    title = {"native": "ours", "grpcio": "grpc.aio"}[kind] + (", TLS" if tls else "")
    async with channel_to(kind, tls) as channel:
        methods = ("EchoCallback", "Echo") if kind == "native" else ("Echo",)
        for method in methods:
            name = title + (" (callback)" if method == "EchoCallback" else "")
            call = channel.unary_unary(f"/{SERVICE}/{method}")
            alone = await one_at_a_time(call, ONE_AT_A_TIME // divisor)
            report.add(f"{name}: unary 1 KiB, one at a time, median", alone, "us")
            rate, client, server = await in_flight(channel, method, CALLS_EACH // divisor)
            report.add(f"{name}: unary 1 KiB, 64 in flight", rate, "/s")
            report.add(f"{name}: client's processor a call", client, "us")
            report.add(f"{name}: server's processor a call", server, "us")
        if not tls:
            up, down = await streamed(channel, STREAM_MESSAGES // divisor)
            report.add(f"{title}: 1 MiB messages to the server", up / 1e6, "MB/s")
            report.add(f"{title}: 1 MiB messages from the server", down / 1e6, "MB/s")


async def measure_rpc(report: Report, directory: Path, *, quick: bool) -> None:
    divisor = 10 if quick else 1
    bare = await bare_tcp(ONE_AT_A_TIME // divisor)
    report.add("bare TCP echo, one at a time, median", bare, "us")
    for kind in ("native", "grpcio"):
        await measure_kind(report, kind, [], divisor=divisor)
    for kind in ("native", "grpcio"):
        await measure_kind(report, kind, self_signed(directory), divisor=divisor)
    value = report.value
    alone = "unary 1 KiB, one at a time, median"
    report.add("ours over bare TCP, one at a time", value(f"ours (callback): {alone}") / bare, "x", at_most=3)
    server = "server's processor a call"
    report.add(
        "server's processor, ours over grpc.aio's",
        value(f"ours (callback): {server}") / value(f"grpc.aio: {server}"),
        "x",
        at_most=0.1,
    )
    for way in ("to", "from"):
        name = f"1 MiB messages {way} the server"
        report.add(
            f"stream {way} the server, ours over grpc.aio's",
            value(f"ours: {name}") / value(f"grpc.aio: {name}"),
            "x",
            at_least=1.5,
        )
    report.add(
        "TLS over plain, one at a time",
        value(f"ours, TLS (callback): {alone}") / value(f"ours (callback): {alone}"),
        "x",
        at_most=1.6,
    )
