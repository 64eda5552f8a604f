"""gRPC for asyncio: a server and a channel with grpc.aio's names, on an HTTP/2 core that knows no socket.

`import trovemq_rpc as aio` instead of `from grpc import aio`; README.md lists the differences. In which order
to read: `http2` (frames to events), `wire` (gRPC's part of it), `endpoint` (a connection on a loop),
`server`, `channel`.
"""

from __future__ import annotations

from trovemq_rpc.budget import BytesBudget
from trovemq_rpc.channel import (
    Call,
    Channel,
    ChannelConnectivity,
    ClientCallDetails,
    ClientInterceptor,
    InterceptedUnaryUnaryCall,
    ServerInterceptor,
    StreamStreamCall,
    StreamStreamClientInterceptor,
    StreamUnaryCall,
    StreamUnaryClientInterceptor,
    UnaryStreamCall,
    UnaryStreamClientInterceptor,
    UnaryUnaryCall,
    UnaryUnaryClientInterceptor,
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
from trovemq_rpc.server import CallbackStream, CallbackUnary, Server, ServerCall, StreamCallbacks, server
from trovemq_rpc.wire.compression import Compression
from trovemq_rpc.wire.metadata import Metadata
from trovemq_rpc.wire.status import StatusCode

__all__ = [
    "EOF",
    "AbortError",
    "AioRpcError",
    "BaseError",
    "BytesBudget",
    "Call",
    "CallbackStream",
    "CallbackUnary",
    "Channel",
    "ChannelConnectivity",
    "ChannelCredentials",
    "ClientCallDetails",
    "ClientInterceptor",
    "Compression",
    "InterceptedUnaryUnaryCall",
    "InternalError",
    "Limits",
    "Metadata",
    "Server",
    "ServerCall",
    "ServerCredentials",
    "ServerInterceptor",
    "StatusCode",
    "StreamCallbacks",
    "StreamStreamCall",
    "StreamStreamClientInterceptor",
    "StreamUnaryCall",
    "StreamUnaryClientInterceptor",
    "UnaryStreamCall",
    "UnaryStreamClientInterceptor",
    "UnaryUnaryCall",
    "UnaryUnaryClientInterceptor",
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
