"""Native calls at a node that does not lead: forwarded, repeated or refused. The leader is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.support.rpc_context import RpcContext
from trovemq_broker.server.core.forwarding import NativeStream
from trovemq_broker.server.native.leader_calls import NativeLeaderCalls
from trovemq_broker.server.wire.forwarded_messages import ForwardedClient
from trovemq_broker.server.wire.send_messages import SERVICE
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.forwarding import PEER_KEY, REDIRECTS_KEY

pytestmark = pytest.mark.asyncio

PATH = f"/{SERVICE.full_name}/Append"


class Leader:
    """The calls at the leader, one after the other; each has the replies of `scripts`, and its error."""

    def __init__(self, *scripts: Sequence[bytes | TroveError]) -> None:
        self.scripts = list(scripts)
        self.calls: list[Stream] = []
        self.clients: list[ForwardedClient] = []

    async def open_native(
        self, broker: str, path: str, client: ForwardedClient, remaining_s: float | None, *, by_tls: bool
    ) -> NativeStream:
        assert (broker, path, by_tls) == ("g1", PATH, False)
        self.clients.append(client)
        self.calls.append(Stream(self.scripts.pop(0)))
        return self.calls[-1]


class Stream:
    def __init__(self, script: Sequence[bytes | TroveError]) -> None:
        self.script = list(script)
        self.written: list[bytes] = []
        self.has_ended = asyncio.Event()
        self.is_cancelled = False

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    async def end(self) -> None:
        self.has_ended.set()

    async def read(self) -> bytes | None:
        await self.has_ended.wait()
        reply = self.script.pop(0) if self.script else None
        if isinstance(reply, TroveError):
            raise reply
        return reply

    def cancel(self) -> None:
        self.is_cancelled = True


class Follower:
    """`waits_max`: how many times a call waits for a leader."""

    def __init__(self, leader: Leader, waits_max: int = 5) -> None:
        self.stopping = asyncio.Event()
        self.waits = 0
        self._waits_max = waits_max
        self.missing: list[TroveError | None] = [None]
        calls = NativeLeaderCalls(leader, "g1", self._missing, not_leader, self._wait, self.stopping)
        self._handler = calls.handlers(SERVICE, ("Fetch",))

    def _missing(self) -> TroveError | None:
        return self.missing.pop(0) if len(self.missing) > 1 else self.missing[0]

    async def _wait(self, error: TroveError, _ends: float) -> None:
        self.waits += 1
        if self.waits > self._waits_max:
            raise error
        await asyncio.sleep(0)

    async def call(self, *messages: bytes, context: Any = None) -> list[bytes]:
        async def requests() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        context = context or RpcContext()
        async with asyncio.timeout(60):
            await self._handler["Append"].stream_stream(requests(), context)
        return list(context.written)


def not_leader() -> TroveError:
    return TroveError(errors.NOT_LEADER, "another node leads")


def unread() -> TroveError:
    return TroveError(errors.BROKER_UNREACHABLE, "it does not listen", **{errors.UNREAD: "true"})


def with_metadata(key: str, value: str) -> RpcContext:
    context = RpcContext()
    context.invocation_metadata = lambda: ((key, value),)  # type: ignore[method-assign]
    return context


async def test_messages_and_replies_go_through() -> None:
    leader = Leader([b"r1", b"r2"])
    follower = Follower(leader)
    assert await follower.call(b"1", b"2", b"3") == [b"r1", b"r2"]
    (stream,) = leader.calls
    assert (stream.written, stream.is_cancelled) == ([b"1", b"2", b"3"], True)
    assert leader.clients[0].peer == RpcContext.address
    assert "Fetch" not in follower._handler, "the node serves it itself"


async def test_a_call_waits_for_a_leader_that_looks_at_it() -> None:
    leader = Leader([not_leader()], [unread()], [b"done"])
    follower = Follower(leader)
    follower.missing = [not_leader(), None]
    assert await follower.call(b"1") == [b"done"]
    assert [stream.written for stream in leader.calls] == [[b"1"]] * 3
    assert follower.waits == 3


async def test_without_a_leader_the_call_is_refused() -> None:
    follower = Follower(Leader(), waits_max=2)
    follower.missing = [not_leader()]
    with pytest.raises(TroveError, match="NOT_LEADER"):
        await follower.call(b"1")


@pytest.mark.parametrize("script", [[TroveError(errors.BROKER_UNREACHABLE)], [b"r", not_leader()]])
async def test_a_call_that_may_be_done_is_not_repeated(script: list[bytes | TroveError]) -> None:
    leader = Leader(script)
    with pytest.raises(TroveError):
        await Follower(leader).call(b"1")
    assert len(leader.calls) == 1


async def test_a_stream_that_has_sent_more_is_not_repeated() -> None:
    leader = Leader([not_leader()])
    with pytest.raises(TroveError, match="NOT_LEADER"):
        await Follower(leader).call(b"1", b"2")
    assert len(leader.calls) == 1


@pytest.mark.parametrize("key", [REDIRECTS_KEY, PEER_KEY])
async def test_a_call_that_is_not_to_be_forwarded_gets_the_redirect(key: str) -> None:
    """Of a client that goes to the leader itself, and of a node: one hop."""
    leader = Leader()
    with pytest.raises(TroveError, match="NOT_LEADER") as refused:
        await Follower(leader).call(b"1", context=with_metadata(key, "1"))
    assert (refused.value.fields[errors.UNREAD], leader.calls) == ("true", [])


async def test_a_call_ends_with_its_listener() -> None:
    leader = Leader([])
    follower = Follower(leader)
    context = RpcContext()
    never: asyncio.Queue[bytes] = asyncio.Queue()

    async def requests() -> AsyncIterator[bytes]:
        yield b"1"
        yield await never.get()

    calling = asyncio.create_task(follower._handler["Append"].stream_stream(requests(), context))
    while not (leader.calls and leader.calls[0].written):
        await asyncio.sleep(0)
    follower.stopping.set()
    async with asyncio.timeout(60):
        with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
            await calling
    assert leader.calls[0].is_cancelled
