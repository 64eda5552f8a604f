"""Biographies from all brokers that have records of the message, merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trovemq._links import Links
from trovemq._queries import outcomes_of
from trovemq._query_merge import NOT_ANSWERED
from trovemq._wire.biography import Place, biography
from trovemq.biography_model import BiographyEvent, GroupVerdict, MessageBiography, MessageCopy
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_ABSENT = (errors.MESSAGE_NOT_FOUND, errors.TOPIC_NOT_FOUND)


async def ask_all(links: Links, identifier: str | Place, topic: str, broker: str | None) -> MessageBiography:
    """Documented at `Client.biography`."""
    if isinstance(identifier, str):
        brokers = links.routes.brokers(broker)
    else:
        brokers = [links.routes.broker_of_queue(identifier[0], identifier[1], broker)]
    calls = [biography(links.connection(info), info.name, identifier, topic) for info in brokers]
    answers: list[MessageBiography] = []
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
    if answers:
        return _merged(answers, unreachable)
    if unreachable:
        names = ", ".join(unreachable)
        raise TroveError(
            errors.BROKER_UNREACHABLE, f"{identifier}: not found, but no answer from {names}", brokers=names
        )
    not_found = [error for error in refusals if error.spec is errors.MESSAGE_NOT_FOUND]
    raise (not_found or refusals)[0]


def _merged(answers: Sequence[MessageBiography], unreachable: Sequence[str]) -> MessageBiography:
    """Messages are numbered through, broker by broker; copies and events are in the order of time."""
    copies: list[MessageCopy] = []
    events: list[BiographyEvent] = []
    verdicts: list[GroupVerdict] = []
    notes: list[str] = []
    before = 0
    for answer in answers:
        copies += [replace(copy, message=copy.message + before) for copy in answer.copies]
        events += [replace(event, message=event.message + before) for event in answer.events]
        verdicts += [replace(verdict, message=verdict.message + before) for verdict in answer.verdicts]
        notes += answer.notes
        before = max((copy.message for copy in copies), default=before)
    copies.sort(key=lambda copy: copy.store_timestamp)
    events.sort(key=lambda event: event.timestamp)
    notes += [f"{name}: no answer" for name in unreachable]
    return MessageBiography(
        tuple(copies),
        tuple(events),
        tuple(verdicts),
        all(answer.complete for answer in answers) and not unreachable,
        tuple(unreachable),
        tuple(notes),
    )
