"""The metadata of native calls that another broker is to handle: the leader of a replica group, where a node
does not lead it, or the one that a client names which reaches other brokers only.

| key                      | from                  | meaning                                                 |
|--------------------------|-----------------------|---------------------------------------------------------|
| `trovemq-redirects`      | a client              | it follows NOT_LEADER itself: forward nothing           |
| `trovemq-for-broker`     | a client              | the broker that is to answer the look-up                |
| `trovemq-for-peer`       | who forwards          | the address of the client whose call it forwards, as    |
|                          |                       | gRPC writes it; no node forwards that call again        |
| `trovemq-for-caller-bin` | the same              | the access key of the client's user, in UTF-8; the node |
|                          |                       | has to be a super user                                  |

The node signs such a call for signed_path(): so no one between the two can change the client, and a leader
that does not know the keys refuses the call, where it would take the node for the caller.
"""

from __future__ import annotations

from typing import Final

REDIRECTS_KEY: Final = "trovemq-redirects"
BROKER_KEY: Final = "trovemq-for-broker"
PEER_KEY: Final = "trovemq-for-peer"
CALLER_KEY: Final = "trovemq-for-caller-bin"


def signed_path(path: str, peer: str, caller: str) -> str:
    """The path of a forwarded call in its signature (authentication/calls.py). `caller`: empty for a client
    that did not log in."""
    return f"{path}\0{peer}\0{caller}"
