"""The ends of deliveries, message by message or by runs, as tests name them. Each is one settle()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.groups.delivery.lease_resolvers import Handles, ReceiptRange
from trovemq_broker.groups.delivery.settlements import (
    ACKNOWLEDGED,
    CONFIRMED,
    DeadLettered,
    Invisible,
    Released,
    Results,
)
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs


class RefusedOffset(NamedTuple):
    """A message of a range that was not settled, and why."""

    offset: int
    error: TroveError


def acknowledge(delivery: Delivery, group: str, topic: str, handle: str, now_ms: EpochMs) -> None:
    delivery.settle(group, topic, _handles([handle]), ACKNOWLEDGED, now_ms).require()


def acknowledge_all(
    delivery: Delivery, group: str, topic: str, handles: Sequence[str], now_ms: EpochMs
) -> list[TroveError | None]:
    """None, or the error, for each."""
    refused = delivery.settle(group, topic, _handles(handles), ACKNOWLEDGED, now_ms).refused
    return [refused.get(place) for place in range(len(handles))]


def acknowledge_range(
    delivery: Delivery,
    group: str,
    topic: str,
    receipt: str,
    offsets: range,
    now_ms: EpochMs,
    client_id: str = "",
) -> list[RefusedOffset]:
    named = ReceiptRange(receipt, offsets, client_id)
    return _refused(delivery.settle(group, topic, named, ACKNOWLEDGED, now_ms))


def change_invisible(
    delivery: Delivery,
    group: str,
    topic: str,
    handle: str,
    invisible_ms: int,
    now_ms: EpochMs,
    *,
    suspend: bool = False,
) -> str:
    """The new handle."""
    outcome = Invisible(invisible_ms, suspend=suspend)
    results = delivery.settle(group, topic, _handles([handle]), outcome, now_ms)
    results.require()
    return results.handles[0]


def change_range(
    delivery: Delivery,
    group: str,
    topic: str,
    receipt: str,
    offsets: range,
    invisible_ms: int,
    now_ms: EpochMs,
    *,
    suspend: bool = False,
    client_id: str = "",
) -> list[RefusedOffset]:
    outcome = Invisible(invisible_ms, suspend=suspend)
    return _refused(delivery.settle(group, topic, ReceiptRange(receipt, offsets, client_id), outcome, now_ms))


def dead_letter(
    delivery: Delivery, group: str, topic: str, handle: str, now_ms: EpochMs, attempts_min: int = 0
) -> bool:
    """False if the message was delivered less often than attempts_min."""
    results = delivery.settle(group, topic, _handles([handle]), DeadLettered(attempts_min), now_ms)
    results.require()
    return not results.attempts_remaining


def release_handles(
    delivery: Delivery,
    group: str,
    topic: str,
    handles: Sequence[str],
    now_ms: EpochMs,
    *,
    counted: bool = False,
) -> None:
    delivery.settle(group, topic, _handles(handles), Released(counted=counted), now_ms)


def release_range(
    delivery: Delivery,
    group: str,
    topic: str,
    receipt: str,
    offsets: range,
    now_ms: EpochMs,
    *,
    counted: bool,
) -> None:
    named = ReceiptRange(receipt, offsets)
    delivery.settle(group, topic, named, Released(counted=counted), now_ms)


def confirm_range(
    delivery: Delivery, group: str, topic: str, receipt: str, offsets: range, now_ms: EpochMs
) -> None:
    delivery.settle(group, topic, ReceiptRange(receipt, offsets), CONFIRMED, now_ms)


def _refused(results: Results) -> list[RefusedOffset]:
    return [RefusedOffset(offset, error) for offset, error in results.refused.items()]


def _handles(handles: Sequence[str]) -> Handles:
    return Handles([handle.encode() for handle in handles])
