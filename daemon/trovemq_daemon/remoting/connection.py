"""One connection of a remoting client.

Both sides send requests. A client's are answered in any order; the opaque number joins an answer to its
request, and each side numbers its own.

| limit | effect |
| --- | --- |
| FRAMES_AT_ONCE frames of a read | the rest is handled in the next iteration of the loop |
| a frame that breaks a limit of the protocol | the connection ends: it has no error for that |
| bytes of requests under way: IN_FLIGHT_BYTES_MAX, or the server's budget is full | no reading until less |
| bytes that the client has not read, more than OUTPUT_UNCOUNTED | they count in the budget |
| UNSENT_BYTES_MAX that the client has not read | no reading; replies with messages wait (is_full) |
| nothing read or sent for IDLE_S | the connection ends, as in RocketMQ |
| an incomplete frame that grows by less than PROGRESS_MIN in STALL_S | the connection ends |
| answers that are not read for UNREAD_S | the connection ends |
| ASKED_MAX own requests without an answer | LIMIT_EXCEEDED for the next one |

Invariants
- Each request that is not one-way gets one answer, while its connection lasts.
- All answers of one iteration of the loop are one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, Final, Protocol

from trovemq_daemon.remoting.request import NO_FIELDS, Reply, Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.errors import FrameError
from trovemq_proto.remoting.frame import Frame, FrameSplitter, encode_frame
from trovemq_proto.remoting.headers import IS_ONE_WAY, IS_RESPONSE, Header
from trovemq_rpc.server.guest import Host

FRAMES_AT_ONCE: Final = 256
IN_FLIGHT_BYTES_MAX: Final = 32 << 20
REQUEST_BYTES: Final = 2 << 10
"""A request counts as this many bytes more than its frame: its objects while it waits."""
OUTPUT_UNCOUNTED: Final = 64 << 10
"""Bytes of answers that wait for the client, and are too few to count in the budget."""
UNSENT_BYTES_MAX: Final = 4 << 20
IDLE_S: Final = 120.0
STALL_S: Final = 10.0
PROGRESS_MIN: Final = 512
"""Bytes, which every network carries in that time. A client that sends one a second keeps no connection."""
UNREAD_S: Final = 60.0
ASKED_MAX: Final = 1_024
REMARK_SIZE_MAX: Final = 1_024
VERSION: Final = 493
"""The index of release 5.4.0 in RocketMQ's list, whose behaviour we follow."""


class Requests(Protocol):
    """The part of a server that its connections need."""

    frame_size_max: int
    illegal_frames: int

    def together(self) -> AbstractContextManager[object]: ...
    def opened(self, connection: RemotingConnection) -> None: ...
    def closed(self, connection: RemotingConnection) -> None: ...
    def begin(self, request: Request) -> None: ...
    def ended(self, request: Request, code: int) -> None: ...
    def response_of(self, request: Request, error: BaseException) -> tuple[int, str]: ...


class RemotingConnection:
    """A guest of the gRPC port (trovemq_rpc.server.guest.Guest)."""

    def __init__(self, host: Host, server: Requests) -> None:
        self._server = server
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(server.frame_size_max)
        self._rest = b""
        """Of a read with more frames than FRAMES_AT_ONCE."""
        self._continues = self._flushes = False
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._kept = 0
        """Of an incomplete frame, as the budget has it."""
        self._out: list[bytes] = []
        self._out_size = 0
        self._is_writable = True
        self._is_behind = False
        """Whether we do not read on: its incomplete frame waits for us."""
        self._is_draining = False
        self.is_lost = False
        self._when_writable: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[int, asyncio.Future[Reply]] = {}
        self._opaques = count(1)
        self._requests = 0
        self._client: tuple[str, bool] | None = None
        """The client for which a node has opened it: its address, and whether it came by TLS."""
        self._active_s = self._grown_s = self._taken_s = self._loop.time()
        self._grown_size = 0
        """Of the incomplete frame, at `_grown_s`."""
        self.on_lost: list[Callable[[], None]] = []
        server.opened(self)

    @property
    def peer(self) -> str:
        """As gRPC names it: ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000."""
        return self._host.peer() if self._client is None else self._client[0]

    @property
    def is_secure(self) -> bool:
        return self._host.is_secure if self._client is None else self._client[1]

    def relayed(self, peer: str, *, is_secure: bool) -> None:
        """From now on it is the connection of that client. TroveError REQUEST_ILLEGAL: it was used before."""
        if self._requests > 1 or self._client is not None:
            raise TroveError(errors.REQUEST_ILLEGAL, "the connection has had requests before")
        self._client = peer, is_secure

    def now(self) -> float:
        """Seconds of the loop's clock."""
        return self._loop.time()

    # --- reading ----------------------------------------------------------------------------------------
    def receive(self, data: memoryview) -> None:
        self._active_s = self._loop.time()
        if self._rest or self._is_draining:
            if not self._is_draining:
                self._rest += data
            return
        self._handle(data)

    def _handle(self, data: memoryview) -> None:
        kept_size, number = self._splitter.kept_size, 0
        with self._server.together():
            try:
                for number, frame in enumerate(self._splitter.feed(data), 1):
                    self._on_frame(frame)
                    if self.is_lost:
                        return
                    if number == FRAMES_AT_ONCE:
                        self._keep_rest(frame, data)
                        break
            except FrameError as error:
                self._server.illegal_frames += 1
                self._host.refuse(f"remoting: {error}")
                return
        self._note_growth(is_new=bool(number) or not kept_size)
        self._account()

    def _note_growth(self, *, is_new: bool) -> None:
        """`is_new`: the incomplete frame began in this read."""
        size = self._splitter.kept_size
        if is_new or size - self._grown_size >= PROGRESS_MIN:
            self._grown_s, self._grown_size = self._loop.time(), size

    def _keep_rest(self, frame: Frame, data: memoryview) -> None:
        """`frame` was the last one of this iteration."""
        self._rest = bytes(self._splitter.take_rest())
        if self._rest and not self._continues:
            self._continues = True
            self._host.pause()
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._continues = False
        if self.is_lost or self._is_draining:
            return
        rest, self._rest = self._rest, b""
        self._handle(memoryview(rest))

    def _on_frame(self, frame: Frame) -> None:
        header = frame.header()
        if header.is_response:
            waiting = self._asked.pop(header.opaque, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(Reply(header.code, header.remark, header.fields, bytes(frame.body)))
            return
        request = Request(self, header, frame.form, bytes(frame.body), frame.size)
        self._requests += 1
        self._in_flight += 1
        self._in_flight_bytes += frame.size + REQUEST_BYTES
        self._server.begin(request)

    def _account(self) -> None:
        """Reports the bytes held to the budget, and reads on while there is space for more."""
        if self.is_lost:
            return
        held = self._in_flight_bytes + self._splitter.kept_size + len(self._rest)
        budget, host = self._host.budget, self._host
        more, self._kept = held - self._kept, held
        if more > 0:
            budget.take(host, more)
        elif more < 0:
            budget.give(host, -more)
        if self._continues or self._is_draining:
            return
        was_behind = self._is_behind
        self._is_behind = (
            self._in_flight_bytes > IN_FLIGHT_BYTES_MAX or self.is_full or budget.exhausted(host)
        )
        if was_behind:
            self._grown_s = self._loop.time()
        if self._is_behind:
            host.pause()
        else:
            host.resume()

    # --- answers ----------------------------------------------------------------------------------------
    def answered(
        self, request: Request, code: int, remark: str, fields: Mapping[str, str], body: bytes
    ) -> None:
        """By Request.answer."""
        self._in_flight -= 1
        self._in_flight_bytes -= request.size + REQUEST_BYTES
        self._server.ended(request, code)
        if self.is_lost:
            return
        if not request.header.is_one_way:
            header = Header(
                code,
                request.header.opaque,
                IS_RESPONSE,
                version=VERSION,
                remark=remark[:REMARK_SIZE_MAX],
                fields=dict(fields),
            )
            self._send(_encoded(header, body, request.form))
        self._flush_soon()

    def notify(self, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> None:
        """A one-way request to the client."""
        if not self.is_lost and not self.is_full:
            header = Header(code, next(self._opaques), IS_ONE_WAY, version=VERSION, fields=dict(fields))
            self._send(encode_frame(header, body))
            self._flush_soon()

    async def ask(self, code: RequestCode, fields: Mapping[str, str], body: bytes, timeout_s: float) -> Reply:
        """The client's answer. TroveError LIMIT_EXCEEDED, CONSUME_MSG_TIMEOUT, CONSUMER_NOT_ONLINE."""
        if self.is_lost:
            raise TroveError(errors.CONSUMER_NOT_ONLINE, f"client {self.peer} is gone")
        if len(self._asked) >= ASKED_MAX or self.is_full:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{len(self._asked)} requests wait for {self.peer}")
        opaque = next(self._opaques)
        waiting = self._asked[opaque] = self._loop.create_future()
        try:
            self._send(encode_frame(Header(code, opaque, version=VERSION, fields=dict(fields)), body))
            self._flush_soon()
            async with asyncio.timeout(timeout_s):
                reply: Reply = await waiting
                return reply
        except TimeoutError:
            text = f"client {self.peer} did not answer in {timeout_s:.0f} s"
            raise TroveError(errors.CONSUME_MSG_TIMEOUT, text) from None
        finally:
            self._asked.pop(opaque, None)

    @property
    def is_full(self) -> bool:
        """Whether the client has too many unread bytes for another reply with messages."""
        return not self._is_writable or self._host.unsent_size + self._out_size > UNSENT_BYTES_MAX

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Calls back when the client has read its replies; at once if it has. Never after it is lost."""
        if not self.is_full:
            callback()
        elif not self.is_lost:
            self._when_writable.append(callback)

    def _send(self, frame: bytes) -> None:
        self._out.append(frame)
        self._out_size += len(frame)

    def _flush_soon(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        if self.is_lost:
            return
        if self._out:
            self._active_s = self._loop.time()
            out, self._out, self._out_size = self._out, [], 0
            self._host.send((out[0],) if len(out) == 1 else (b"".join(out),))
        if self._when_writable:
            self._wake_writers()
        self._count_output()
        self._account()
        if self._is_draining and not self._in_flight:
            self._host.close()

    def _count_output(self) -> None:
        """Reports the answers that the client has not read to the budget."""
        size = self._host.unsent_size
        if size <= OUTPUT_UNCOUNTED:
            size = 0
        if size != self._host.output_held and not self.is_lost:
            self._host.budget.set_output(self._host, size)

    # --- the host's calls -------------------------------------------------------------------------------
    def writable(self, can_write: bool) -> None:
        self._is_writable = can_write
        self._taken_s = self._loop.time()
        if can_write:
            self._wake_writers()
        self._count_output()
        self._account()

    def _wake_writers(self) -> None:
        waiting, self._when_writable = self._when_writable, []
        for at, callback in enumerate(waiting):
            if self.is_full:
                self._when_writable = waiting[at:] + self._when_writable
                return
            callback()

    def budget_free(self) -> None:
        """Reads on in the next iteration: a connection that gives bytes back wakes all others by this call,
        which would wake others in turn."""
        self._flush_soon()

    def tick(self, now: float) -> None:
        if self._when_writable:
            self._wake_writers()
        waits = self._splitter.kept_size and not self._rest and not self._is_behind
        if waits and now - self._grown_s > STALL_S:
            self._host.refuse("remoting: a frame that does not end")
        elif not self._is_writable and now - self._taken_s > UNREAD_S:
            self._host.abort()
        elif now - self._active_s > IDLE_S and not self._in_flight:
            self._host.close()
        else:
            self._count_output()
            self._account()

    def drain(self) -> None:
        self._is_draining = True
        self._rest = b""
        self._host.pause()
        self._flush_soon()

    def lost(self) -> None:
        self.is_lost = True
        if self._kept:
            self._host.budget.give(self._host, self._kept)
            self._kept = 0
        self._out.clear()
        self._when_writable.clear()
        for task in tuple(self._tasks):
            task.cancel()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(TroveError(errors.CONSUMER_NOT_ONLINE, f"client {self.peer} is gone"))
        self._server.closed(self)
        for callback in self.on_lost:
            callback()

    def response_of(self, request: Request, error: BaseException) -> tuple[int, str]:
        return self._server.response_of(request, error)

    # --- tasks ------------------------------------------------------------------------------------------
    def run(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        """By Request.run."""
        task = self._loop.create_task(self._guarded(request, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            request.fail(error)


def _encoded(header: Header, body: bytes, form: int) -> bytes:
    """The frame of an answer. One that no frame can have becomes an error."""
    try:
        return encode_frame(header, body, form)
    except ValueError as error:
        failed = Header(ResponseCode.SYSTEM_ERROR, header.opaque, IS_RESPONSE, remark=str(error))
        return encode_frame(failed, b"", form)


__all__ = ["NO_FIELDS", "RemotingConnection", "Reply"]
