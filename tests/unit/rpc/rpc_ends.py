"""A server and a channel of ours on loopback, for the tests beside it."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import trovemq_rpc as rpc

SERVICE = "test.Test"


class Handlers:
    """One method of each kind, and some that misbehave."""

    def __init__(self) -> None:
        self.cancelled: asyncio.Future[str] | None = None
        self.seen_deadline: float | None = None
        self.metadata: Any = None

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.seen_deadline = context.time_remaining()
        self.metadata = context.invocation_metadata()
        return request

    async def size(self, request: bytes, _context: Any) -> bytes:
        return str(len(request)).encode()

    async def fail(self, request: bytes, context: Any) -> bytes:
        await context.abort(
            rpc.StatusCode.NOT_FOUND, request.decode(), (("why", "so"), ("raw-bin", b"\0\xff"))
        )
        return b""

    async def raise_error(self, _request: bytes, _context: Any) -> bytes:
        raise ValueError("planted")

    async def hang(self, _request: bytes, context: Any) -> bytes:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.cancelled is not None and not self.cancelled.done():
                self.cancelled.set_result(context.peer())
            raise
        return b""

    async def count(self, request: bytes, context: Any) -> Any:
        await context.send_initial_metadata((("begin", "now"),))
        context.set_trailing_metadata((("end", "there"),))
        for number in range(int(request)):
            yield b"%d" % number

    async def join(self, requests: Any, _context: Any) -> bytes:
        return b",".join([request async for request in requests])

    async def both(self, requests: Any, _context: Any) -> Any:
        async for request in requests:
            yield request

    async def read_write(self, _requests: Any, context: Any) -> None:
        while (request := await context.read()) is not rpc.EOF:
            await context.write(request.upper())

    def registered(self) -> dict[str, Any]:
        unary, generator = rpc.unary_unary_rpc_method_handler, rpc.unary_stream_rpc_method_handler
        return {
            "Echo": unary(self.echo),
            "Size": unary(self.size),
            "Fail": unary(self.fail),
            "Raise": unary(self.raise_error),
            "Hang": unary(self.hang),
            "Count": generator(self.count),
            "Join": rpc.stream_unary_rpc_method_handler(self.join),
            "Both": rpc.stream_stream_rpc_method_handler(self.both),
            "ReadWrite": rpc.stream_stream_rpc_method_handler(self.read_write),
        }


class Ends:
    """Both ends of a test."""

    def __init__(self, server: rpc.Server, channel: rpc.Channel, handlers: Handlers, port: int) -> None:
        self.server = server
        self.channel = channel
        self.handlers = handlers
        self.port = port

    def unary(self, name: str) -> Any:
        return self.channel.unary_unary(f"/{SERVICE}/{name}")

    def stream(self, name: str) -> Any:
        return self.channel.stream_stream(f"/{SERVICE}/{name}")


@asynccontextmanager
async def ends(
    *,
    options: Any = None,
    channel_options: Any = None,
    server_credentials: Any = None,
    credentials: Any = None,
    callbacks: dict[str, Any] | None = None,
    prepare: Callable[[rpc.Server], None] | None = None,
    **server_arguments: Any,
) -> AsyncIterator[Ends]:
    handlers = Handlers()
    server = rpc.server(options=options, **server_arguments)
    server.add_registered_method_handlers(SERVICE, handlers.registered())
    if callbacks:
        server.add_callback_handlers(SERVICE, callbacks)
    if server_credentials is not None:
        port = server.add_secure_port("127.0.0.1:0", server_credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    if prepare is not None:
        prepare(server)
    await server.start()
    target = f"127.0.0.1:{port}"
    if credentials is not None:
        channel = rpc.secure_channel(target, credentials, options=channel_options)
    else:
        channel = rpc.insecure_channel(target, options=channel_options)
    try:
        yield Ends(server, channel, handlers, port)
    finally:
        await channel.close()
        await server.stop(None)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Lets the loop go round until something holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


class Authority:
    """A certificate authority of the tests."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        self.root = self._sign(self._name, self._key.public_key(), authority=True)

    def _sign(self, name: x509.Name, key: Any, authority: bool = False) -> bytes:
        begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        names = [x509.DNSName("localhost"), x509.DNSName("service")]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(days=36_500))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name: str) -> tuple[bytes, bytes]:
        """A private key and its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return private, self._sign(name, key.public_key())


@cache
def authority() -> Authority:
    return Authority()
