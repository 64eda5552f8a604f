"""The remoting side of a daemon's port: handlers by code, errors as codes, metrics.

Invariants
- A code without a handler is answered with REQUEST_CODE_NOT_SUPPORTED, in RocketMQ's words, at once.
- The error of a handler is the answer to its request alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

from trovemq_daemon.logging import get_logger
from trovemq_daemon.metrics import RpcMetrics
from trovemq_daemon.remoting.connection import RemotingConnection
from trovemq_daemon.remoting.request import Request
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.codes import ResponseCode, request_name, response_code
from trovemq_proto.remoting.fields import FieldError
from trovemq_proto.remoting.frame import FRAME_SIZE_MAX
from trovemq_proto.remoting.refused import refusal_text
from trovemq_rpc.server.guest import Host

Handler: TypeAlias = Callable[[Request], None]
"""Answers the request now, later, or by Request.run(); or raises TroveError, FieldError."""
Around: TypeAlias = Callable[[Request, Handler], None]
"""Runs the handler for a request that its sender may make; else raises TroveError."""
UNKNOWN: Final = "UNKNOWN"
"""In metrics: all requests without a handler, whose codes are a client's choice."""
FIRST_BYTE: Final = 0
"""Of each frame: its length is below 2^24."""
OFF: Final = "RocketMQ's remoting protocol, which is served with the setting remoting_enable = true"
"""The reason in the log, where it is not served."""


class RemotingServer:
    """`together`: a block (`with`) around the requests of one read. `around`: runs each handler."""

    def __init__(
        self,
        metrics: RpcMetrics,
        handlers: Mapping[int, Handler],
        *,
        together: Callable[[], AbstractContextManager[object]] = nullcontext,
        around: Around | None = None,
        frame_size_max: int = FRAME_SIZE_MAX,
    ) -> None:
        self._metrics = metrics
        self._handlers = handlers
        self._around = around
        self._together = together
        self.frame_size_max = frame_size_max
        self.connections: set[RemotingConnection] = set()
        self.illegal_frames = 0

    def together(self) -> AbstractContextManager[object]:
        """A block around the requests of one read."""
        return self._together()

    def accept(self, host: Host) -> RemotingConnection:
        """A connection whose first byte is FIRST_BYTE."""
        return RemotingConnection(host, self)

    def opened(self, connection: RemotingConnection) -> None:
        self.connections.add(connection)

    def closed(self, connection: RemotingConnection) -> None:
        self.connections.discard(connection)

    # --- requests ---------------------------------------------------------------------------------------
    def begin(self, request: Request) -> None:
        code = request.header.code
        handler = self._handlers.get(code)
        try:
            if handler is None:
                request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, refusal_text(code))
                return
            if self._around is None:
                handler(request)
            else:
                self._around(request, handler)
        except Exception as error:
            request.fail(error)

    def ended(self, request: Request, code: int) -> None:
        """The request has its answer."""
        elapsed_ms = (time.perf_counter() - request.received_s) * 1000
        response = "OK" if code == ResponseCode.SUCCESS else _response_name(code)
        code = request.header.code
        name = request_name(code) if code in self._handlers else UNKNOWN
        self._metrics.observe(name, response, elapsed_ms, protocol="remoting")

    def response_of(self, request: Request, error: BaseException) -> tuple[int, str]:
        """Code and remark of an error. One that is none of ours is logged."""
        if isinstance(error, TroveError):
            return response_code(error), error.message
        if isinstance(error, FieldError):
            return ResponseCode.SYSTEM_ERROR, str(error)
        name = request_name(request.header.code)
        get_logger().error("remoting.unexpected_error", request=name, exc_info=error)
        return ResponseCode.SYSTEM_ERROR, "an unexpected error: the log of the server has it"


def _response_name(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return str(code)
