"""The request that begins a connection which a node passes on to the leader of its replica group.

It is the first one of the connection. The node signs it as a user, as remoting clients sign their requests,
and has to be a super user: so the leader knows the client's address, and no client can name another one.

| field     | value                                                     |
|-----------|-----------------------------------------------------------|
| `purpose` | PURPOSE: no other signed request can be taken for it      |
| `peer`    | the client's address, as gRPC writes it                   |
| `secure`  | `true`: the client came by TLS; else `false`              |
"""

from __future__ import annotations

from typing import Final

RELAYED: Final = 32_001
"""Its code. RocketMQ has none above 10,000, and its binary headers none above 32,767."""
PURPOSE: Final = "trovemq relayed connection"


def relayed_fields(peer: str, *, is_secure: bool) -> dict[str, str]:
    return {"purpose": PURPOSE, "peer": peer, "secure": "true" if is_secure else "false"}
