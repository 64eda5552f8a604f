"""One call to every broker: a broker that is away hides no other, and is named.

| outcome of the brokers                              | result                                              |
|-----------------------------------------------------|-----------------------------------------------------|
| at least one answers, others are away or lack it    | the answers; those that are away are named          |
| none answers, one is away                           | the error of the first; BROKER_UNREACHABLE if       |
|                                                     | another one lacks it                                |
| none has it                                         | the error of the first                              |
| any other error                                     | that error; changes on other brokers stay           |

A broker is away if it does not answer, or if a nameserver has lost it. Lost brokers count where every broker
is asked; for a topic those that had it.

Where the call is about the cluster's configuration (`shared`), one of the brokers that share it is asked: the
owner if it is live, or another one if that does not answer or lacks it. Its answer names the others that are
away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from trovemq._net.configurations import ASK_ANOTHER, Unit, units_of
from trovemq._net.connections import ConnectionPool
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import BrokerInfo
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

NOT_ANSWERED: Final = (errors.BROKER_UNREACHABLE, errors.REQUEST_TIMEOUT, errors.SERVICE_NOT_AVAILABLE)

_Result = TypeVar("_Result")


async def outcomes_of(calls: Iterable[Awaitable[_Result]]) -> list[_Result | TroveError]:
    """Every call's result, or its TroveError; anything else is raised."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    outcomes: list[_Result | TroveError] = []
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, TroveError):
            raise result
        outcomes.append(result)
    return outcomes


async def ask_brokers(
    pool: ConnectionPool,
    brokers: Sequence[BrokerInfo],
    ask: Callable[[BrokerInfo], Awaitable[_Result]],
    *,
    broker: str | None,
    topic: str = "",
    absent: Sequence[errors.ErrorSpec] = (),
    change: bool = False,
    shared: bool = False,
    pending_of: Callable[[_Result], Iterable[str]] = lambda _answer: (),
) -> BrokerAnswers[_Result]:
    """The answers of the brokers that have one. Raises TroveError by the table above.

    Args:
        pool: The client's connections.
        brokers: The brokers to call.
        ask: The call.
        broker: The broker that the caller named; None if all are meant.
        topic: The topic that the call is about.
        absent: Errors of a broker that lacks the topic, group or user.
        change: Whether the call changes something: then brokers that are away are pending, else missing.
        shared: Whether it is about the configuration of brokers, which some of them may share.
        pending_of: The brokers that an answer to a change names as pending.
    """
    units = units_of(brokers) if shared and broker is None else [(info,) for info in brokers]
    return await ask_units(
        *(pool, units, ask),
        broker=broker,
        topic=topic,
        absent=absent,
        change=change,
        pending_of=pending_of,
        with_lost=not shared,
    )


async def ask_units(
    pool: ConnectionPool,
    units: Sequence[Unit],
    ask: Callable[[BrokerInfo], Awaitable[_Result]],
    *,
    broker: str | None,
    topic: str = "",
    absent: Sequence[errors.ErrorSpec] = (),
    change: bool = False,
    pending_of: Callable[[_Result], Iterable[str]] = lambda _answer: (),
    with_lost: bool = False,
) -> BrokerAnswers[_Result]:
    """The answers of one broker of each unit. Arguments and errors are those of `ask_brokers`; lost brokers
    count if `with_lost`, or if a broker shares its configuration with no other one."""

    async def one(unit: Unit) -> _Result:
        absence: TroveError | None = None
        for info in unit:
            try:
                return await ask(info)
            except TroveError as error:
                failure = error
                if error.spec in absent:
                    absence = absence or error
                elif error.spec not in ASK_ANOTHER:
                    raise
        raise absence or failure

    outcomes = await outcomes_of(map(one, units))
    answers = [outcome for outcome in outcomes if not isinstance(outcome, TroveError)]
    away: dict[str, TroveError] = {}
    absences: list[TroveError] = []
    for unit, outcome in zip(units, outcomes, strict=True):
        if not isinstance(outcome, TroveError):
            continue
        if outcome.spec in NOT_ANSWERED:
            away.update((info.name, outcome) for info in unit)
        elif outcome.spec in absent:
            absences.append(outcome)
        else:
            raise await pool.explained(outcome)
    if not answers:
        raise await _nothing(pool, absences, away)
    later = {name for answer in answers for name in pending_of(answer)}
    named = set(away)
    if broker is None and (with_lost or any(unit[0].config is None for unit in units)):
        named |= await lost_names(pool, topic)
    if change:
        return BrokerAnswers(answers, pending=named, later=later)
    return BrokerAnswers(answers, missing=named)


async def _nothing(
    pool: ConnectionPool, absences: Sequence[TroveError], away: dict[str, TroveError]
) -> TroveError:
    """The error of a call that no broker answered."""
    if not absences:
        return next(iter(away.values()))
    if not away:
        return await pool.explained(absences[0])
    names = ", ".join(sorted(away))
    text = f"{absences[0].message}, but no answer from {names}"
    return TroveError(errors.BROKER_UNREACHABLE, text, brokers=names)


async def lost_names(pool: ConnectionPool, topic: str = "") -> set[str]:
    """The brokers that a nameserver has lost; with `topic`, those that had it. It is asked only if there are
    any."""
    lost = {one.name for one in pool.routes.state.lost}
    if lost and topic:
        lost &= {one.name for one in await pool.lost_brokers_of(topic)}
    return lost
