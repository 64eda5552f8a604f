"""One budget of bytes for all that a server on our own transport holds for its clients.

The transport counts requests that were not read yet, and replies that their client has not taken. The second
it also claims from the budget of replies, connection by connection: who makes a large reply waits there
(reply_budget.py). So replies take at most three quarters of the whole, and requests have the rest.
"""

from __future__ import annotations

import trovemq_rpc
from trovemq_daemon.bytes_budget import BytesBudget, Claim
from trovemq_rpc.budget import Holder


class TransportBudget(trovemq_rpc.BytesBudget):
    """`trovemq.budget` of a server."""

    def __init__(self, replies: BytesBudget, receive_size_max: int) -> None:
        """`receive_size_max`: of one request; there is space for one, whatever the replies may take."""
        super().__init__(max(replies.total, receive_size_max) * 4 // 3 + 1, replies.peer_max)
        self._replies = replies
        self._claims: dict[Holder, Claim] = {}

    def set_output(self, holder: Holder, size: int) -> None:
        """Sets how many bytes are ready on the connection and not taken by its client."""
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
        """Of requests that are received and not read, or incomplete."""
        return self.held - self.output_held
