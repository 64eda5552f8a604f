"""gRPC for asyncio: a server and a channel with grpc.aio's names, on an HTTP/2 core that knows no socket.

Write `import trovemq_rpc as aio` instead of `from grpc import aio`. docs/rpc-names.md compares all names.

To read the code, begin with `http2` (frames become events); then `wire` (gRPC's use of HTTP/2), `endpoint` (a
connection on an event loop), `server` and `channel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trovemq_rpc.budget import BytesBudget
from trovemq_rpc.channel import (
    Call,
    Channel,
    ChannelConnectivity,
    StreamStreamCall,
    StreamStreamMultiCallable,
    StreamUnaryCall,
    StreamUnaryMultiCallable,
    UnaryStreamCall,
    UnaryStreamMultiCallable,
    UnaryUnaryCall,
    UnaryUnaryMultiCallable,
    insecure_channel,
    secure_channel,
)
from trovemq_rpc.credentials import (
    ChannelCredentials,
    ServerCredentials,
    ssl_channel_credentials,
    ssl_server_credentials,
)
from trovemq_rpc.errors import EOF, AbortError, AioRpcError, BaseError, InternalError, UsageError
from trovemq_rpc.handlers import (
    method_handlers_generic_handler,
    stream_stream_rpc_method_handler,
    stream_unary_rpc_method_handler,
    unary_stream_rpc_method_handler,
    unary_unary_rpc_method_handler,
)
from trovemq_rpc.http2.limits import Limits
from trovemq_rpc.refused_names import why_not
from trovemq_rpc.server import (
    CallbackUnary,
    HandlerCallDetails,
    Server,
    ServerCall,
    server,
)
from trovemq_rpc.wire.compression import Compression
from trovemq_rpc.wire.metadata import Metadata
from trovemq_rpc.wire.status import StatusCode

RpcContext = Call
ServicerContext = ServerCall

__all__ = [
    "EOF",
    "AbortError",
    "AioRpcError",
    "BaseError",
    "BytesBudget",
    "Call",
    "CallbackUnary",
    "Channel",
    "ChannelConnectivity",
    "ChannelCredentials",
    "Compression",
    "HandlerCallDetails",
    "InternalError",
    "Limits",
    "Metadata",
    "RpcContext",
    "Server",
    "ServerCall",
    "ServerCredentials",
    "ServicerContext",
    "StatusCode",
    "StreamStreamCall",
    "StreamStreamMultiCallable",
    "StreamUnaryCall",
    "StreamUnaryMultiCallable",
    "UnaryStreamCall",
    "UnaryStreamMultiCallable",
    "UnaryUnaryCall",
    "UnaryUnaryMultiCallable",
    "UsageError",
    "insecure_channel",
    "method_handlers_generic_handler",
    "secure_channel",
    "server",
    "ssl_channel_credentials",
    "ssl_server_credentials",
    "stream_stream_rpc_method_handler",
    "stream_unary_rpc_method_handler",
    "unary_stream_rpc_method_handler",
    "unary_unary_rpc_method_handler",
]

if not TYPE_CHECKING:  # or mypy would take every name for one of the package's

    def __getattr__(name: str) -> object:
        raise AttributeError(why_not(name), name=name, obj=None)
