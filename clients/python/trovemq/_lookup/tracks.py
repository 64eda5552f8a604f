"""Merges the tracks of a message from all brokers that have records of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trovemq._net.all_brokers import NOT_ANSWERED, lost_names, outcomes_of
from trovemq._net.connections import ConnectionPool
from trovemq._wire.replica_lags import longest_lag
from trovemq._wire.tracks import Place, track
from trovemq.models.track import ConsumptionStatus, MessageCopy, MessageTrack, TrackEvent
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_ABSENT = (errors.MESSAGE_NOT_FOUND, errors.TOPIC_NOT_FOUND)


async def ask_all(
    pool: ConnectionPool, identifier: str | Place, topic: str, broker: str | None
) -> MessageTrack:
    """Documented at `Client.track`."""
    if isinstance(identifier, str):
        brokers = await pool.relays.brokers(broker)
    else:
        brokers = [pool.routes.broker_of_queue(identifier[0], identifier[1], broker)]
    calls = [track(pool.connection(info), info.name, identifier, topic) for info in brokers]
    answers: list[MessageTrack] = []
    refusals: list[TroveError] = []
    unreachable: list[str] = []
    for info, result in zip(brokers, await outcomes_of(calls), strict=True):
        if not isinstance(result, TroveError):
            answers.append(result)
        elif result.spec in NOT_ANSWERED:
            unreachable.append(info.name)
        elif result.spec in _ABSENT:
            refusals.append(result)
        else:
            raise result
    lacking = bool(refusals) and all(error.spec is errors.TOPIC_NOT_FOUND for error in refusals)
    if broker is None and isinstance(identifier, str) and not lacking:
        unreachable += sorted(await lost_names(pool, topic) - set(unreachable))
    if answers:
        return _merged(answers, unreachable)
    if unreachable:
        names = ", ".join(unreachable)
        raise TroveError(
            errors.BROKER_UNREACHABLE, f"{identifier}: not found, but no answer from {names}", brokers=names
        )
    not_found = [error for error in refusals if error.spec is errors.MESSAGE_NOT_FOUND]
    raise await pool.explained((not_found or refusals)[0])


def _merged(answers: Sequence[MessageTrack], unreachable: Sequence[str]) -> MessageTrack:
    """Numbers the messages broker by broker; copies and events are in the order of time."""
    copies: list[MessageCopy] = []
    events: list[TrackEvent] = []
    statuses: list[ConsumptionStatus] = []
    notes: list[str] = []
    before = 0
    for answer in answers:
        copies += [replace(copy, message=copy.message + before) for copy in answer.copies]
        events += [replace(event, message=event.message + before) for event in answer.events]
        statuses += [replace(status, message=status.message + before) for status in answer.statuses]
        notes += answer.notes
        before = max((copy.message for copy in copies), default=before)
    copies.sort(key=lambda copy: copy.store_timestamp)
    events.sort(key=lambda event: event.timestamp)
    notes += [f"{name}: no answer" for name in unreachable]
    return MessageTrack(
        tuple(copies),
        tuple(events),
        tuple(statuses),
        all(answer.complete for answer in answers) and not unreachable,
        tuple(unreachable),
        tuple(notes),
        longest_lag(answer.replica for answer in answers),
    )
