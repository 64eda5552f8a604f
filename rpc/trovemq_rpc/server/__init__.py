"""The server and its calls.

| to read | has |
| --- | --- |
| `method`, `methods` | a method's handler, prepared for its calls |
| `head` | a call's headers |
| `incoming`, `outgoing`, `call` | a call: its requests, its answers, its life |
| `call_endpoint`, `endpoint` | a connection: requests become calls |
| `refusals` | answers to requests and peers that begin no call |
| `running` | coroutine handlers |
| `server` | methods, ports, start and stop |
"""

from __future__ import annotations

from trovemq_rpc.server.call import ServerCall
from trovemq_rpc.server.methods import CallbackUnary
from trovemq_rpc.server.server import HandlerCallDetails, Server, server

__all__ = [
    "CallbackUnary",
    "HandlerCallDetails",
    "Server",
    "ServerCall",
    "server",
]
