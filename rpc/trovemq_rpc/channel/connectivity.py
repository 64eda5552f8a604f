"""A channel's state, as grpc names it.

| state | leads to | by |
| --- | --- | --- |
| IDLE | CONNECTING | a call, `get_state(try_to_connect=True)` |
| CONNECTING | READY, TRANSIENT_FAILURE | the peer's SETTINGS; an error or the time |
| READY | IDLE, CONNECTING | the connection is lost or drained: at once again where calls wait |
| TRANSIENT_FAILURE | CONNECTING | the backoff is over |
| each | SHUTDOWN | `close` |
"""

from __future__ import annotations

from trovemq_rpc.wire.status import NamedLikeGrpc


class ChannelConnectivity(NamedLikeGrpc):
    """grpcio's values."""

    IDLE = (0, "idle")
    CONNECTING = (1, "connecting")
    READY = (2, "ready")
    TRANSIENT_FAILURE = (3, "transient failure")
    SHUTDOWN = (4, "shutdown")
