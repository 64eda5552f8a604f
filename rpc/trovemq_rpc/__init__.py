"""gRPC for asyncio: a server and a channel with grpc.aio's names, on an HTTP/2 core that knows no socket.

`import trovemq_rpc as aio` instead of `from grpc import aio`; README.md lists what differs. In
which order to read: `http2` (frames to events), `wire` (gRPC's part of it), `endpoint` (a
connection on a loop), `server`, `channel`.
"""

from __future__ import annotations

from trovemq_rpc.credentials import (
    ChannelCredentials,
    ServerCredentials,
    ssl_channel_credentials,
    ssl_server_credentials,
)
from trovemq_rpc.errors import EOF, AbortError, AioRpcError, BaseError, InternalError, UsageError
from trovemq_rpc.server import CallbackStream, CallbackUnary, Server, ServerCall, StreamCallbacks, server
from trovemq_rpc.wire.compression import Compression
from trovemq_rpc.wire.metadata import Metadata
from trovemq_rpc.wire.status import StatusCode

__all__ = [
    "EOF",
    "AbortError",
    "AioRpcError",
    "BaseError",
    "CallbackStream",
    "CallbackUnary",
    "ChannelCredentials",
    "Compression",
    "InternalError",
    "Metadata",
    "Server",
    "ServerCall",
    "ServerCredentials",
    "StatusCode",
    "StreamCallbacks",
    "UsageError",
    "server",
    "ssl_channel_credentials",
    "ssl_server_credentials",
]
