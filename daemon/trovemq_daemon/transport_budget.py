"""The budget of bytes for requests and replies of a server with our own transport.

The transport counts requests that were not processed yet, and replies that their client has not read. It also
claims the replies from the budget of replies, by connection, on which code that makes a large reply waits
(reply_budget.py). So replies take at most three quarters of the whole, and requests have the rest.
"""

from __future__ import annotations

import trovemq_rpc
from trovemq_daemon.bytes_budget import BytesBudget, Claim
from trovemq_rpc.budget import Holder


class TransportBudget(trovemq_rpc.BytesBudget):
    """`trovemq.budget` of a server."""

    def __init__(self, replies: BytesBudget, receive_size_max: int) -> None:
        """`receive_size_max`: of one request; there is always space for one, however many bytes replies may
        take."""
        super().__init__(max(replies.total, receive_size_max) * 4 // 3 + 1, replies.peer_max)
        self._replies = replies
        self._claims: dict[Holder, Claim] = {}

    def set_output(self, holder: Holder, size: int) -> None:
        """Sets how many bytes are ready on the connection and not read by its client."""
        super().set_output(holder, size)
        claim = self._claims.get(holder)
        if claim is None:
            self._claims[holder] = self._replies.force(holder.peer(), size)
        else:
            self._replies.resize(claim, size)
        if not size:
            self._claims.pop(holder, None)

    @property
    def request_bytes(self) -> int:
        """Bytes of requests that are received and not processed, or incomplete."""
        return self.held - self.output_held
