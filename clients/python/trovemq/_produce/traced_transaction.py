"""An atomic transaction with spans, for a client whose options have `tracing`."""

from __future__ import annotations

from typing import Any

from opentelemetry.trace import SpanContext

from trovemq._common.trace_context import creation_context
from trovemq._net.connections import ConnectionPool
from trovemq.atomic import AtomicTransaction, CommitReceipt
from trovemq.fetched import Buffer
from trovemq.otel import Tracing


class TracedAtomicTransaction(AtomicTransaction):
    """Each message has a span. The span of the commit links to them."""

    def __init__(self, tracing: Tracing, pool: ConnectionPool, **options: Any) -> None:
        super().__init__(pool, **options)
        self._tracing = tracing
        self._contexts: list[SpanContext | None] = []
        self._wanted = tracing.wants_send()

    async def send(self, topic: str, body: Buffer, **arguments: Any) -> int:
        """Adds a message, with the context of its span. Returns its number. Raises TroveError."""
        properties = arguments.get("properties")
        if self._wanted:
            arguments["properties"] = properties = self._tracing.created(topic, None, properties)
        number = await super().send(topic, body, **arguments)
        if self._wanted:
            self._contexts.append(creation_context(properties or {}))
        return number

    async def commit(self) -> CommitReceipt:
        """Commits within a span. Returns the receipts. Raises TroveError."""
        if not self._wanted:
            return await super().commit()
        span = self._tracing.begin_commit(self._contexts)
        try:
            receipt = await super().commit()
        except BaseException as failure:
            self._tracing.failed(span, failure)
            raise
        span.end()
        return receipt
