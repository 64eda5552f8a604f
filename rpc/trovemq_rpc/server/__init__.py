"""The server: `server()` and its calls. Read `methods`, `call`, `endpoint`, `running`, then `server`."""

from __future__ import annotations

from trovemq_rpc.server.call import ServerCall
from trovemq_rpc.server.methods import CallbackStream, CallbackUnary, StreamCallbacks
from trovemq_rpc.server.server import Server, server

__all__ = ["CallbackStream", "CallbackUnary", "Server", "ServerCall", "StreamCallbacks", "server"]
