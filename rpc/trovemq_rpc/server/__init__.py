"""The server: `server()` and its calls. Read `method`, `call`, `methods`,
`endpoint`, `running`, then `server`.
"""

from __future__ import annotations

from trovemq_rpc.server.call import ServerCall, StreamCallbacks
from trovemq_rpc.server.methods import CallbackStream, CallbackUnary
from trovemq_rpc.server.server import Server, server

__all__ = ["CallbackStream", "CallbackUnary", "Server", "ServerCall", "StreamCallbacks", "server"]
