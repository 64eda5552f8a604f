"""Pulls from a replica, which follows a leader with a lag.

- Each reply has the lag; a request may say how much it bears.
- An offset after the end of the queue is answered as one at its end: the leader may have it, and a reader
  that comes from there must not begin again.
"""

from __future__ import annotations

from collections.abc import Callable

from trovemq_broker.fetch.pull import Puller, PullRequest, PullResult, PullSettings
from trovemq_broker.replication.read_lag import ReaderLag, check_lag
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_range


class ReplicaPuller(Puller):
    """`lag`: the present one. `refusal`: is set before the store is closed, and ends every later pull."""

    def __init__(self, store: MessageStore, settings: PullSettings, lag: Callable[[], ReaderLag]) -> None:
        super().__init__(store, settings)
        self._lag = lag
        self.refusal: TroveError | None = None

    def pull(self, request: PullRequest) -> PullResult:
        """Raises the errors of Puller, TroveError REPLICA_LAG_EXCEEDED, and the refusal."""
        if self.refusal is not None:
            raise self.refusal
        lag = self._lag()
        check_lag(lag, request.max_lag_ms)
        try:
            result = super().pull(request)
        except TroveError as error:
            if error.spec is not errors.OFFSET_OUT_OF_RANGE:
                raise
            low, high = queue_range(self._store, request.topic, request.queue_id)
            if request.offset <= high:
                raise
            result = PullResult([], 0, 0, request.offset, low, high)
        return result._replace(replica=lag)
