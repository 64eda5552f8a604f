"""The metadata of native calls at a node that does not lead its replica group.

| key                      | from                  | meaning                                                 |
|--------------------------|-----------------------|---------------------------------------------------------|
| `trovemq-redirects`      | a client              | it follows NOT_LEADER itself: forward nothing           |
| `trovemq-for-peer`       | a node, to its leader | the address of the client whose call it forwards, as    |
|                          |                       | gRPC writes it; no node forwards that call again        |
| `trovemq-for-caller-bin` | the same              | the access key of the client's user, in UTF-8; the node |
|                          |                       | has to be a super user                                  |
"""

from __future__ import annotations

from typing import Final

REDIRECTS_KEY: Final = "trovemq-redirects"
PEER_KEY: Final = "trovemq-for-peer"
CALLER_KEY: Final = "trovemq-for-caller-bin"
