"""doctor: asks brokers and groups for their state, looks for faults, and prints what to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeVar

import typer

from trovemq.cli.doctor_checks import CHECKS, findings
from trovemq.cli.doctor_evidence import (
    BrokerEvidence,
    Evidence,
    Finding,
    GroupEvidence,
    Holdings,
    Load,
)
from trovemq.cli.figures import counted
from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import BrokerInfo, Client, ConfigStatus, QueueLag

Result = TypeVar("Result")

GROUPS_MAX: Final = 1_000
ASKED_AT_ONCE_MAX: Final = 16
EVIDENT: Final = (
    errors.ACCESS_DENIED,
    errors.AUTHENTICATION_FAILED,
    errors.BROKER_NOT_FOUND,
    errors.BROKER_UNREACHABLE,
    errors.REQUEST_TIMEOUT,
    errors.SERVICE_NOT_AVAILABLE,
    errors.TLS_FAILED,
)
"""Errors that are findings; any other error ends the command."""


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "doctor")(doctor)


async def doctor(
    session: Session,
    watch: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="S",
            min=0.0,
            max=600.0,
            help="Time between two looks at the lag of groups.",
        ),
    ] = 2.0,
) -> None:
    """Look for faults in a cluster. Prints what to do about each."""
    found = findings(await gathered(session, watch))
    session.exit_code = 0 if all(finding.note for finding in found) else 1
    for one in found:
        session.output.item(
            {"kind": _kind(one), "check": one.check, "where": one.where, "what": one.what, "toDo": one.to_do}
        )
    problems = sum(not finding.note for finding in found)
    session.output.note(checks=len(CHECKS), problems=problems, notes=len(found) - problems)
    counts = f"{counted(problems, 'problem')}, {counted(len(found) - problems, 'note')}"
    session.output.remark(f"{len(CHECKS)} checks: {counts}")
    if found and not session.output.objects:
        from rich.text import Text

        from trovemq.cli.render import printable

        lines = (f"{_kind(one)} ({one.check}) {one.where}: {one.what} → {one.to_do}" for one in found)
        session.output.show(Text("\n".join(printable(line) for line in lines)))


def _kind(finding: Finding) -> str:
    return "note" if finding.note else "problem"


class Asking(Protocol):
    """Awaits one request, within a limit of time. Raises TroveError REQUEST_TIMEOUT."""

    async def __call__(self, awaitable: Awaitable[Result], /) -> Result: ...


async def gathered(session: Session, watch_s: float) -> Evidence:
    """The answers of the cluster; a failed call is evidence, too."""
    try:
        async with session.client() as client:
            found = await evidence_of(client, session.server, watch_s, session.call)
            session.note_unseen()
            return found
    except TroveError as failure:
        if failure.spec not in EVIDENT:
            raise
        return Evidence(session.server or "the server", version("trovemq"), failure=failure)


async def evidence_of(client: Client, server: str, watch_s: float, call: Asking) -> Evidence:
    """The same by a client that is connected. `server`: its address, as findings name it. Raises TroveError
    if no server answers."""
    state = await call(client.admin.cluster())
    asked = [_broker(call, client, one.broker, watch_s) for one in state.brokers]
    brokers, (before, after) = await asyncio.gather(asyncio.gather(*asked), _configs(call, client, watch_s))
    groups = await _groups(call, client, watch_s) if _any_answers(brokers) else ()
    own = version("trovemq")
    return Evidence(server, own, brokers, groups, state.lost, configs_before=before, configs=after)


async def _configs(
    call: Asking, client: Client, watch_s: float
) -> tuple[Sequence[ConfigStatus], Sequence[ConfigStatus]]:
    """The configuration of each broker at two times, the first only if they differ. Brokers that do not
    answer are findings of another check."""
    try:
        before = await call(client.admin.config.status())
        if not watch_s:
            return (), before
        await asyncio.sleep(watch_s)
        return before, await call(client.admin.config.status())
    except TroveError as failure:
        if failure.spec not in EVIDENT:
            raise
        return (), ()


def _any_answers(brokers: Sequence[BrokerEvidence]) -> bool:
    return any(broker.failure is None for broker in brokers)


async def _broker(call: Asking, client: Client, info: BrokerInfo, watch_s: float) -> BrokerEvidence:
    asked = _now_ms()
    try:
        condition = await call(client.admin.brokers.condition(info.name))
        answered = _now_ms()
        settings = await call(client.admin.brokers.settings(broker=info.name))
    except TroveError as failure:
        return BrokerEvidence(info, failure=failure)
    found = BrokerEvidence(info, condition, {one.name: one for one in settings}, asked, answered)
    try:
        return replace(found, holdings=await _holdings(call, client, info.name, watch_s))
    except TroveError as failure:
        return replace(found, failure=failure)


async def _holdings(call: Asking, client: Client, broker: str, watch_s: float) -> Holdings:
    """Its topics and groups, and its counters at two times."""
    admin = client.admin
    topics = await call(admin.list_topics(broker=broker))
    groups = await call(admin.groups.list_all(broker=broker))
    (before,) = await call(admin.statistics(broker=broker))
    began = _now_ms()
    await asyncio.sleep(watch_s)
    (after,) = await call(admin.statistics(broker=broker)) if watch_s else [before]
    counters = after.counters
    stored = counters.get("messages_in", 0) - before.counters.get("messages_in", 0)
    of_users = {one.topic: one for one in topics if not one.system}
    load = Load(
        stored / (_now_ms() - began) * 1000 if watch_s else None,
        counters.get("log_end_offset", 0) - counters.get("log_min_offset", 0),
        sum(one.queue_count for one in of_users.values()),
    )
    return Holdings(of_users, {one.group: one for one in groups if one.created}, load, counters)


async def _groups(call: Asking, client: Client, watch_s: float) -> list[GroupEvidence]:
    """Groups with waiting messages, and their lag at two times."""
    members: dict[str, int] = {}
    for one in await call(client.admin.groups.list_all()):
        members[one.group] = members.get(one.group, 0) + one.member_count
    names = sorted(members)[:GROUPS_MAX]
    before = dict(zip(names, await _lags(call, client, names), strict=True))
    waiting = [name for name in names if sum(queue.lag for queue in before[name])]
    if waiting:
        await asyncio.sleep(watch_s)
    after = await _lags(call, client, waiting)
    return [
        GroupEvidence(
            group=name,
            members=members[name],
            lag_before=sum(queue.lag for queue in before[name]),
            lag=sum(queue.lag for queue in queues),
            oldest_ms=max((queue.lag_ms for queue in queues), default=0),
        )
        for name, queues in zip(waiting, after, strict=True)
    ]


async def _lags(call: Asking, client: Client, names: Sequence[str]) -> list[list[QueueLag]]:
    """The lag of each group, except those that were deleted meanwhile or that the user may not see."""
    at_once = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def one(name: str) -> list[QueueLag]:
        async with at_once:
            try:
                return await call(client.admin.groups.lag(name))
            except TroveError:
                return []

    return list(await asyncio.gather(*(one(name) for name in names)))


def _now_ms() -> float:
    return time.time() * 1000
