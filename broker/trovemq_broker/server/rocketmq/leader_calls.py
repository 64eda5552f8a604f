"""RocketMQ's calls at a node that does not lead its replica group: the leader handles them.

So a client that was given the address of one node survives a failover, also if it knows nothing of groups.

| event                                     | then                                                           |
|-------------------------------------------|----------------------------------------------------------------|
| a call, and the leader is known           | its request goes there, and its replies come back: one hop,    |
|                                           | because a node that does not lead refuses a forwarded call     |
| no leader, or the one that is known leads | the call waits, WAIT_S at most: nothing was done; of more than |
| no more, or does not listen               | WAITING_MAX calls the others are refused at once               |
| the leader does not answer                | the error of the call: a send may have been stored             |
| this node stops, or leads next            | calls that wait are refused, and telemetry streams end         |
| a telemetry stream                        | has its own at the leader; they end together, and clients open |
|                                           | another one                                                    |

The caller's rights and quotas count at this node, and its rights at the leader again. The limits of open
calls and streams are those of cluster/call_forwarding.py; a stream's next message is read when the one before
is written, on both sides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

from trovemq_broker.server.core.forwarding import ForwardCalls, ForwardedCall, ForwardedStream
from trovemq_broker.server.rocketmq.forwards import client_of
from trovemq_broker.server.rocketmq.service import status_handler
from trovemq_broker.server.wire.methods import request_type
from trovemq_broker.server.wire.rocketmq_services import MESSAGING
from trovemq_broker.server.wire.statuses import Context, Malformed, reader
from trovemq_daemon.grpc_services import method_handler
from trovemq_daemon.grpc_transport import is_end
from trovemq_daemon.peers import came_by_tls
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

FORWARDED: Final = (
    "AckMessage",
    "ChangeInvisibleDuration",
    "EndTransaction",
    "ForwardMessageToDeadLetterQueue",
    "GetOffset",
    "Heartbeat",
    "NotifyClientTermination",
    "PullMessage",
    "QueryAssignment",
    "QueryOffset",
    "QueryRoute",
    "RecallMessage",
    "ReceiveMessage",
    "SendMessage",
    "UpdateOffset",
)
TELEMETRY: Final = "Telemetry"
WAIT_S: Final = 2.0
PAUSE_S: Final = 0.05
WAITING_MAX: Final = 1_000


class LeaderCalls:
    """`broker`: the name of the group's broker. `refusal`: NOT_LEADER where no leader is known, else None.
    `stopping`: is set when the listener is to end: another one waits for its address."""

    def __init__(
        self,
        calls: ForwardCalls,
        broker: str,
        refusal: Callable[[], TroveError | None],
        stopping: asyncio.Event,
    ) -> None:
        self._stopping = stopping
        self._calls = calls
        self._broker = broker
        self._refusal = refusal
        self.waiting = 0
        """Calls that wait for a leader."""

    def handlers(self) -> dict[str, Any]:
        """Of the methods that are forwarded, by name."""
        made: dict[str, Any] = {}
        for name in FORWARDED:
            method = MESSAGING.methods_by_name[name]
            made[name] = status_handler(
                method, self._stream(name) if method.server_streaming else self._unary(name)
            )
        telemetry = MESSAGING.methods_by_name[TELEMETRY]
        read = reader(request_type(telemetry))
        return made | {TELEMETRY: method_handler(telemetry, self.telemetry, read)}

    def _unary(self, name: str) -> Callable[[Any, Context], Any]:
        async def call(request: Any, context: Context) -> Any:
            async with aclosing(self._replies(name, request, context)) as replies:
                async for reply in replies:
                    return reply
            raise TroveError(errors.BROKER_UNREACHABLE, f"broker {self._broker} sent no reply")

        return call

    def _stream(self, name: str) -> Callable[[Any, Context], AsyncGenerator[Any, None]]:
        async def call(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            async with aclosing(self._replies(name, request, context)) as replies:
                async for reply in replies:
                    yield reply

        return call

    async def _replies(self, name: str, request: Any, context: Context) -> AsyncGenerator[bytes, None]:
        """Raises NOT_LEADER, and the errors of ForwardCalls."""
        data, ends = request.SerializeToString(), asyncio.get_running_loop().time() + WAIT_S
        client, by_tls, has_begun = client_of(context), came_by_tls(context), False
        while True:
            try:
                if (refused := self._refusal()) is not None:
                    raise refused
                call = ForwardedCall(client, name, data, context.time_remaining(), by_tls)
                async with aclosing(self._calls.forward(self._broker, call)) as replies:
                    async for reply in replies:
                        has_begun = True
                        yield reply
                return
            except TroveError as error:
                if has_begun or not _is_undone(error):
                    raise
                await self.wait(error, ends)

    async def wait(self, error: TroveError, ends: float) -> None:
        """A moment for a leader, until `ends` of the loop's time; or raises the error."""
        is_late = asyncio.get_running_loop().time() + PAUSE_S > ends
        if is_late or self.waiting >= WAITING_MAX or self._stopping.is_set():
            raise error
        self.waiting += 1
        try:
            await asyncio.sleep(PAUSE_S)
        finally:
            self.waiting -= 1

    async def telemetry(self, _requests: object, context: Context) -> None:
        """Raises NOT_LEADER, and the errors of ForwardCalls."""
        if (refused := self._refusal()) is not None:
            raise refused
        client, by_tls = client_of(context), came_by_tls(context)
        stream = await self._calls.open_telemetry(self._broker, client, by_tls=by_tls)
        tasks = [
            asyncio.create_task(_commands(context, stream), name="telemetry-to-leader"),
            asyncio.create_task(_answers(stream, context), name="telemetry-from-leader"),
            asyncio.create_task(self._stopped(), name="telemetry-until-stop"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stream.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stopped(self) -> None:
        await self._stopping.wait()


def _is_undone(error: TroveError) -> bool:
    """Whether no leader has looked at the call."""
    return error.spec is errors.NOT_LEADER or errors.UNREAD in error.fields


async def _commands(context: Any, stream: ForwardedStream) -> None:
    while not is_end(command := await context.read()):
        if isinstance(command, Malformed):
            raise TroveError(errors.REQUEST_ILLEGAL, command.reason)
        await stream.write(command.SerializeToString())


async def _answers(stream: ForwardedStream, context: Any) -> None:
    while (answer := await stream.read()) is not None:
        await context.write(answer)
