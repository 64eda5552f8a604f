"""Look-ups that name another broker: forwarded, sent again once, or refused. The other broker is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.support.rpc_context import RpcContext
from trovemq_broker.server.core.forwarding import NativeStream
from trovemq_broker.server.native.look_up_forwards import LOOK_UPS, LookUpForwards
from trovemq_broker.server.wire import producer_messages, query_messages, search_messages, track_messages
from trovemq_broker.server.wire.forwarded_messages import ForwardedClient
from trovemq_daemon.calls import for_coroutines
from trovemq_daemon.grpc_services import service_handlers
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.forwarding import BROKER_KEY, PEER_KEY
from trovemq_proto.v1 import group_pb2, query_pb2

pytestmark = pytest.mark.asyncio

UNREAD = TroveError(errors.AUTHENTICATION_FAILED, "the session has ended", **{errors.UNREAD: "true"})


class There:
    """The other broker: each call has the replies of the next script, or its error."""

    def __init__(self, *scripts: Sequence[bytes | TroveError]) -> None:
        self.scripts = list(scripts)
        self.calls: list[tuple[str, str, str]] = []
        self.written: list[bytes] = []
        self.remaining_s: list[float | None] = []
        self.open = 0

    async def open_native(
        self, broker: str, path: str, client: ForwardedClient, remaining_s: float | None, *, by_tls: bool
    ) -> NativeStream:
        self.calls.append((broker, path, client.peer))
        self.remaining_s.append(remaining_s)
        self.open += 1
        return Stream(self, list(self.scripts.pop(0)))


class Stream:
    def __init__(self, there: There, script: list[bytes | TroveError]) -> None:
        self._there = there
        self._script = script
        self._has_ended = False

    async def write(self, message: bytes) -> None:
        self._there.written.append(message)

    async def end(self) -> None:
        self._has_ended = True

    async def read(self) -> bytes | None:
        assert self._has_ended, "the other broker waits for the end of the request"
        reply = self._script.pop(0) if self._script else None
        if isinstance(reply, TroveError):
            raise reply
        return reply

    def cancel(self) -> None:
        self._there.open -= 1


class Queries:
    """This broker's answers."""

    async def get_message(self, _request: Any, _context: Any) -> bytes:
        return b"here"

    async def query_by_key(self, _request: Any, _context: Any) -> AsyncIterator[bytes]:
        for reply in (b"here 1", b"here 2"):
            yield reply

    async def search_offset(self, _request: Any, _context: Any) -> bytes:
        return b"here"

    queue_offsets = search_offset


class Here:
    """As the server to which the services add their handlers."""

    def __init__(self, there: There) -> None:
        self.handlers: dict[str, Any] = {}
        service = query_messages.SERVICE
        added: Any = self
        LookUpForwards(added, "b1", there).add_registered_method_handlers(
            service.full_name, service_handlers(service, Queries())
        )

    def add_registered_method_handlers(self, _service: str, handlers: dict[str, Any]) -> None:
        self.handlers = handlers

    async def get(self, broker: str = "", **metadata: str) -> Any:
        request = query_pb2.GetMessageRequest(id="k")
        handler = for_coroutines(self.handlers["GetMessage"])
        return await handler.unary_unary(request.SerializeToString(), context(broker, **metadata))

    async def query(self, broker: str) -> list[Any]:
        request = query_pb2.QueryByKeyRequest(topic="orders", key="k")
        asked, handler = context(broker), for_coroutines(self.handlers["QueryByKey"])
        await handler.unary_stream(request.SerializeToString(), asked)
        return asked.written


def context(broker: str, **metadata: str) -> RpcContext:
    made = RpcContext(deadline_s=5.0)
    made.metadata |= {BROKER_KEY: broker} if broker else {}
    made.metadata |= metadata
    return made


async def test_a_look_up_that_names_no_other_broker_is_answered_here() -> None:
    there = There()
    here = Here(there)
    assert [await here.get(), await here.get("b1"), await here.get("b2", **{PEER_KEY: "x"})] == [b"here"] * 3
    assert await here.query("") == [b"here 1", b"here 2"]
    assert not there.calls


async def test_a_look_up_is_answered_by_the_broker_that_it_names() -> None:
    there = There([b"there"], [b"there 1", b"there 2"])
    here = Here(there)
    assert (await here.get("b2"), await here.query("b2")) == (b"there", [b"there 1", b"there 2"])
    get, query = (f"/trovemq.v1.QueryService/{name}" for name in ("GetMessage", "QueryByKey"))
    assert there.calls == [("b2", get, RpcContext.address), ("b2", query, RpcContext.address)]
    assert query_pb2.GetMessageRequest.FromString(there.written[0]).id == "k"
    assert (there.remaining_s, there.open) == ([5.0, 5.0], 0)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.BROKER_NOT_FOUND, errors.BROKER_UNREACHABLE),
        (errors.AUTHENTICATION_FAILED, errors.BROKER_UNREACHABLE),
        (errors.REQUEST_TIMEOUT, errors.REQUEST_TIMEOUT),
        (errors.TOPIC_NOT_FOUND, errors.TOPIC_NOT_FOUND),
    ],
)
async def test_an_error_of_the_forwarding_is_none_of_the_clients_own_call(
    error: errors.ErrorSpec, expected: errors.ErrorSpec
) -> None:
    """With AUTHENTICATION_FAILED the client would log in again here."""
    there = There([TroveError(error, "b2 says so")])
    with pytest.raises(TroveError, match="b2 says so") as failed:
        await Here(there).get("b2")
    assert (failed.value.spec, there.open, len(there.calls)) == (expected, 0, 1)


async def test_a_call_that_was_not_read_is_sent_again_once() -> None:
    there = There([UNREAD], [b"there"])
    assert await Here(there).get("b2") == b"there"
    there = There([UNREAD], [UNREAD], [b"never"])
    with pytest.raises(TroveError) as failed:
        await Here(there).get("b2")
    assert (failed.value.spec, len(there.calls)) == (errors.BROKER_UNREACHABLE, 2)
    there = There([b"there 1", UNREAD], [b"never"])
    with pytest.raises(TroveError):
        await Here(there).query("b2")
    assert (len(there.calls), there.open) == (1, 0), "a reply has come"


async def test_a_broker_that_sends_no_reply_is_named() -> None:
    with pytest.raises(TroveError, match="broker b2 sent no reply"):
        await Here(There([])).get("b2")


async def test_only_calls_that_exist_are_forwarded() -> None:
    groups = group_pb2.DESCRIPTOR.services_by_name["GroupService"]
    messages = (producer_messages, query_messages, search_messages, track_messages)
    services = (*(one.SERVICE for one in messages), groups)
    methods = {f"/{service.full_name}/{one.name}": one for service in services for one in service.methods}
    assert methods.keys() >= LOOK_UPS
    assert not any(methods[path].client_streaming for path in LOOK_UPS)
    there = There()
    offset = Here(there).handlers["SearchOffset"].unary_unary
    assert await offset(query_pb2.SearchOffsetRequest(), context("b2")) == b"here"
    assert not there.calls
