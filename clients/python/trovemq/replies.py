"""Replies to requests: their values, and the table of the requests that wait."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

REPLY_TOPIC: Final = "trovemq-replies"
"""The replies of all clients; each reads those with its tag."""
REQUEST_ID: Final = "request_id"
REPLY_TO: Final = "reply_to"
"""Properties of a request, the first one also of its reply."""
WAITING_MAX: Final = 10_000
ENDED_MAX: Final = 10_000
"""Ended requests whose late and double replies are distinguished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply to a request.

    Attributes:
        body: Its bytes.
        properties: The properties that its sender gave it.
        request_id: The id of the request.
        message_id: The id of the reply as a message.
        broker: The broker that has stored it.
    """

    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    request_id: str
    message_id: str
    broker: str


@dataclass(frozen=True, slots=True)
class ReplyCounts:
    """Requests of a client, and the replies that it has dropped.

    Attributes:
        waiting: Requests that wait for a reply.
        late: Replies to requests that had ended without one.
        double: Further replies to requests that had one.
    """

    waiting: int
    late: int
    double: int


class WaitingRequests:
    """Requests by id, and for a while those that have ended. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._ended: OrderedDict[str, bool] = OrderedDict()  # id -> whether it had a reply
        self._late = self._double = 0

    @property
    def counts(self) -> ReplyCounts:
        """The figures now."""
        return ReplyCounts(len(self._waiting), self._late, self._double)

    def begin(self, request_id: str) -> asyncio.Future[Reply]:
        """The future reply. Raises TroveError LIMIT_EXCEEDED with 10,000 waiting requests."""
        if len(self._waiting) >= WAITING_MAX:
            text = f"{WAITING_MAX} requests of this client wait for replies: send fewer at once"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        return future

    def end(self, request_id: str) -> None:
        """The caller waits no longer."""
        if self._waiting.pop(request_id, None) is not None:
            self._note_end(request_id, replied=False)

    def put(self, reply: Reply) -> None:
        """A reply has come: ends its request, or is dropped and counted."""
        future = self._waiting.pop(reply.request_id, None)
        if future is not None and not future.done():
            future.set_result(reply)
            self._note_end(reply.request_id, replied=True)
        elif self._ended.get(reply.request_id):
            self._double += 1
        else:
            self._late += 1

    def fail(self, error: TroveError) -> None:
        """Ends all that wait with the error."""
        for request_id, future in list(self._waiting.items()):
            self.end(request_id)
            if not future.done():
                future.set_exception(error)

    def _note_end(self, request_id: str, *, replied: bool) -> None:
        self._ended[request_id] = replied
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)


class HasReplyCounts(Protocol):
    """A client, of asyncio or of threads."""

    @property
    def reply_counts(self) -> ReplyCounts: ...


class ReplyMetrics:
    """Exports a client's `reply_counts` by prometheus_client.

        trovemq.ReplyMetrics(client).prometheus()

    trovemq_client_requests_waiting, and trovemq_client_replies_dropped_total{reason="late"} and
    {reason="double"}. A registry takes one of them: several clients have a registry each, or labels of it.
    """

    def __init__(self, client: HasReplyCounts) -> None:
        self._client = client

    def prometheus(self, registry: Any = None) -> None:
        """Exports the counts; None for prometheus_client's own registry."""
        from prometheus_client import REGISTRY

        (REGISTRY if registry is None else registry).register(self)

    def collect(self) -> list[Any]:
        """Called by prometheus_client for the metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counts = self._client.reply_counts
        waiting = GaugeMetricFamily(
            "trovemq_client_requests_waiting", "Requests that wait for a reply.", value=counts.waiting
        )
        dropped = CounterMetricFamily(
            "trovemq_client_replies_dropped", "Replies that no request waited for.", labels=["reason"]
        )
        dropped.add_metric(["late"], counts.late)
        dropped.add_metric(["double"], counts.double)
        return [waiting, dropped]
