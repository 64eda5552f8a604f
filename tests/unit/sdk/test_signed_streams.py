"""A signed stream's replies, without a task where the transport has a receiver; sessions that are over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.fake_loop import fake_time
from trovemq._wire.failures import ERROR_METADATA_KEY
from trovemq._wire.session import SignedChannel, StreamCall, UnaryCall
from trovemq_proto import errors
from trovemq_proto.authentication.calls import METADATA_KEY, SigningKey, message_checker
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2

pytestmark = fake_time


KEY = SigningKey(bytes(16), bytes(32))


class RefusalError(ConnectionError):
    """A CallFailure: the server's own error is in the trailer."""

    def code(self) -> Any:
        return SimpleNamespace(name="UNAUTHENTICATED")

    def details(self) -> str:
        return ""

    def trailing_metadata(self) -> Any:
        error = common_pb2.Error(symbol=errors.AUTHENTICATION_FAILED.symbol)
        return ((ERROR_METADATA_KEY, error.SerializeToString()),)


class Channel:
    """A session that is there already."""

    address = "broker"
    failures = (ConnectionError,)
    forgotten = 0

    async def sign_call(self, path: str) -> Any:
        await asyncio.sleep(0)
        checked = KEY.credential(0, path)
        number = -1

        def sign(message: bytes) -> bytes:
            nonlocal number
            number += 1
            return KEY.sign(0, number, message)

        return ((METADATA_KEY, checked),), sign

    def forget_session(self) -> None:
        self.forgotten += 1


class Call:
    """Of our own transport: replies go to the receiver first."""

    def __init__(self) -> None:
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self.written: list[bytes] = []
        self.receiver: Callable[[Any], bool] | None = None

    def set_receiver(self, receiver: Callable[[Any], bool]) -> None:
        self.receiver = receiver

    def reply(self, reply: Any) -> None:
        if self.receiver is None or not self.receiver(reply):
            self.replies.put_nowait(reply)

    async def read(self) -> Any:
        return await self.replies.get()

    async def write(self, message: bytes) -> None:
        self.written.append(message)


class RefusedCall(Call):
    """Its session is over."""

    async def read(self) -> Any:
        raise RefusalError


def stream_of(call: Any, path: str = "/s/m") -> tuple[StreamCall, Channel]:
    channel = Channel()
    return StreamCall(cast("SignedChannel", channel), path, (), lambda _sign, _metadata: call), channel


@pytest.mark.parametrize("early", [True, False])
async def test_replies_come_to_the_receiver_whenever_it_was_set(early: bool) -> None:
    call, taken = Call(), list[Any]()
    stream, _ = stream_of(call)

    def receive(reply: Any) -> bool:
        taken.append(reply)
        return bool(reply != "left")

    if early:
        stream.set_receiver(receive)
    await stream.write(b"one")
    await stream.write(b"two")
    if not early:
        stream.set_receiver(receive)
    for reply in ("first", "left", "last"):
        call.reply(reply)
    assert await stream.read() == "left"
    assert taken == ["first", "left", "last"]
    check = message_checker(KEY, 0)
    assert all(check(message) for message in call.written)


async def test_a_refusal_is_the_readers_and_ends_the_session() -> None:
    call = RefusedCall()
    stream, channel = stream_of(call)
    stream.set_receiver(lambda _reply: True)
    with pytest.raises(TroveError, match="BROKER_UNREACHABLE"):
        await stream.read()
    assert channel.forgotten == 1


@pytest.mark.parametrize("refusals", [1, 2])
async def test_a_unary_call_is_repeated_once_in_a_new_session(refusals: int) -> None:
    refused = 0

    async def answer(_request: bytes, _metadata: Any) -> str:
        nonlocal refused
        if refused < refusals:
            refused += 1
            raise RefusalError
        return "reply"

    channel = Channel()
    call = UnaryCall(cast("SignedChannel", channel), "/s/m", (), answer, b"one")
    if refusals == 1:
        assert await call == "reply"
    else:
        with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
            await call
    assert (refused, channel.forgotten) == (refusals, 1)


async def test_a_transport_without_receivers_reads_all_replies() -> None:
    call = Call()
    plain = SimpleNamespace(read=call.read, write=call.write)
    stream, _ = stream_of(plain)
    stream.set_receiver(lambda _reply: pytest.fail("it has none"))
    call.reply("reply")
    assert await stream.read() == "reply"
