"""Native calls at a node that does not lead its replica group: the leader handles them.

So a client that reaches one node only, or knows nothing of groups, survives a failover. Of the calls here the
messages are bytes; the leader alone reads them, and checks the rights of the caller.

| event                                     | then                                                           |
|-------------------------------------------|----------------------------------------------------------------|
| a call, and the leader is known           | its messages go there, and its replies come back: one hop, a   |
|                                           | call that was forwarded once is refused                        |
| a client that follows NOT_LEADER itself   | NOT_LEADER, at once                                            |
| no leader has looked at the call          | it waits for one, and is repeated: one message at most was     |
|                                           | sent, and no reply came                                        |
| the leader is lost during the call        | the error of the call: it may have been done                   |
| this node stops, or leads next            | the calls end                                                  |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Final

import grpc

from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.forwarding import NativeCalls, NativeStream
from trovemq_broker.server.wire.forwarded_messages import METADATA_MAX, TEXT_SIZE_MAX, ForwardedClient
from trovemq_broker.server.wire.methods import Service
from trovemq_broker.server.wire.statuses import Context, metadata_value
from trovemq_daemon.peers import came_by_tls
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.forwarding import PEER_KEY, REDIRECTS_KEY

WAIT_S: Final = 2.0
_KEYS: Final = ("x-mq-", "traceparent", "tracestate")
"""How the keys of a client's metadata begin that its leader gets."""
_END: Final = object()


class NativeLeaderCalls:
    """`broker`: the name of the group's broker. `leader_missing`: NOT_LEADER where no leader is known, else
    None; `refusal`: NOT_LEADER. `wait`: waits a moment for a leader, until a time of the loop, or raises the
    error. `stopping`: is set when the listener is to end."""

    def __init__(
        self,
        calls: NativeCalls,
        broker: str,
        leader_missing: Callable[[], TroveError | None],
        refusal: Callable[[], TroveError],
        wait: Callable[[TroveError, float], Awaitable[None]],
        stopping: asyncio.Event,
    ) -> None:
        self._calls = calls
        self._broker = broker
        self._leader_missing = leader_missing
        self._refusal = refusal
        self._wait = wait
        self._stopping = stopping

    def handlers(self, service: Service, without: Collection[str] = ()) -> dict[str, Any]:
        """Of the methods of the service, by name; `without` those that the node serves itself."""
        return {
            method.name: grpc.stream_stream_rpc_method_handler(
                self._behaviour(f"/{service.full_name}/{method.name}"), bytes, bytes
            )
            for method in service.methods
            if method.name not in without
        }

    def _behaviour(self, path: str) -> Callable[[Any, Context], Awaitable[None]]:
        async def forward(requests: AsyncIterator[bytes], context: Context) -> None:
            if metadata_value(context, REDIRECTS_KEY) or metadata_value(context, PEER_KEY):
                refusal = self._refusal()
                refusal.fields[errors.UNREAD] = "true"
                raise refusal
            call = _Call(requests, context)
            tasks = [
                asyncio.create_task(self._forward(path, call), name="native-to-leader"),
                asyncio.create_task(self._stopping.wait(), name="native-until-stop"),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not tasks[0].done():
                    raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the node changes its role: try again")
                tasks[0].result()
            finally:
                for task in (*tasks, call.reading):
                    task.cancel()
                await asyncio.gather(*tasks, call.reading, return_exceptions=True)

        return forward

    async def _forward(self, path: str, call: _Call) -> None:
        """Raises NOT_LEADER, and the errors of NativeCalls."""
        ends = asyncio.get_running_loop().time() + WAIT_S
        await call.read_first()
        context, client = call.context, client_of(call.context)
        while True:
            try:
                if (missing := self._leader_missing()) is not None:
                    raise missing
                stream = await self._calls.open_native(
                    *(self._broker, path, client, context.time_remaining()), by_tls=came_by_tls(context)
                )
                await call.exchange(stream)
                return
            except TroveError as error:
                is_undone = error.spec is errors.NOT_LEADER or errors.UNREAD in error.fields
                if not is_undone or not call.may_repeat:
                    raise
                await self._wait(error, ends)


class _Call:
    """The messages of one call: the first is kept while it may have to be sent again."""

    def __init__(self, requests: AsyncIterator[bytes], context: Context) -> None:
        self.context: Final[Any] = context
        self.may_repeat = True
        self._first: Any = _END
        self._failure: TroveError | None = None
        self._later: asyncio.Queue[Any] = asyncio.Queue(1)
        self.reading: Final = asyncio.create_task(self._read(requests), name="native-requests")

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        """One reader over all attempts: a generator that is cancelled ends."""
        try:
            async for message in requests:
                await self._later.put(bytes(message))
        except TroveError as error:  # of the check of access
            self._failure = error
        await self._later.put(_END)

    async def _next(self) -> Any:
        message = await self._later.get()
        if message is _END:
            self._later.put_nowait(_END)  # for another attempt
            if self._failure is not None:
                raise self._failure
        return message

    async def read_first(self) -> None:
        """Raises the error of its check."""
        self._first = await self._next()

    async def exchange(self, stream: NativeStream) -> None:
        """Sends the messages, and passes the replies on. Raises TroveError."""
        sending = asyncio.create_task(self._send(stream), name="native-sending")
        answering = asyncio.create_task(self._answer(stream), name="native-answering")
        try:
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and self._failure is not None:
                raise self._failure
            await answering  # it has the error of the call, also if sending failed
        finally:
            stream.cancel()
            sending.cancel()
            answering.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    async def _send(self, stream: NativeStream) -> None:
        message = self._first
        while message is not _END:
            await stream.write(message)
            message = await self._next()
            if message is not _END:
                self.may_repeat = False
        await stream.end()

    async def _answer(self, stream: NativeStream) -> None:
        while (reply := await stream.read()) is not None:
            self.may_repeat = False
            await self.context.write(reply)


def client_of(context: Any) -> ForwardedClient:
    """The client of a call, as the broker gets it to which the call is forwarded."""
    found = [
        (key, value)
        for key, value in context.invocation_metadata() or ()
        if isinstance(value, str) and key.startswith(_KEYS) and len(value) <= TEXT_SIZE_MAX
    ]
    return ForwardedClient(present_creator().name, str(context.peer()), found[:METADATA_MAX])
