"""Sends messages to an accumulator, as the handlers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from tests.support.engine import NOW_MS
from trovemq_broker.produce.accumulator import Accumulator
from trovemq_broker.produce.append import Appender, batch_size_limit
from trovemq_broker.produce.batches import Batch
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.produce.outgoing import OutgoingEncoder, OutgoingMessage
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_daemon.calls import answer_into
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.engine.append_result import AppendResult


def accumulator_for(appender: Appender, commit: GroupCommit, traffic: Traffic) -> Accumulator:
    """As the daemon makes it; with unique keys U0, U1, …"""
    keys = count()
    settings = appender._store.settings
    encoder = OutgoingEncoder(settings, appender.store_host_ipv6, lambda: f"U{next(keys)}")
    return Accumulator(appender, encoder, batch_size_limit(settings), commit, traffic.appended)


class Outcome(NamedTuple):
    queue_id: QueueId
    result: AppendResult
    error: TroveError | None


def submit(
    accumulator: Accumulator,
    topic: str,
    queue_id: QueueId,
    messages: Sequence[OutgoingMessage],
    done: Callable[[Outcome | Exception], None],
    born_host: bytes | None = None,
) -> None:
    """Raises TroveError if the messages are refused before."""
    queue_id = accumulator.queue_of(topic, queue_id)
    records = accumulator.encoder.encode(
        messages, topic=topic, queue_id=queue_id, born_host=born_host, now_ms=NOW_MS
    )

    def ended(
        outcome: AppendResult | Exception, _ended_at: float = 0.0, error: TroveError | None = None
    ) -> None:
        done(outcome if isinstance(outcome, Exception) else Outcome(queue_id, outcome, error))

    accumulator.submit(Batch(topic, queue_id, records, len(messages)), ended)


async def send(
    accumulator: Accumulator,
    topic: str,
    queue_id: QueueId,
    messages: Sequence[OutgoingMessage],
    born_host: bytes | None = None,
) -> Outcome:
    """Returns when they are as durable as the flush mode promises."""
    done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    submit(accumulator, topic, queue_id, messages, answer_into(done), born_host)
    return await done
