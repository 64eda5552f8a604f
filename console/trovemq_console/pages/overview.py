"""The first page: brokers, nameservers, rates, health."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq import ClusterState
from trovemq.cli.doctor_counters import remarks
from trovemq.cli.doctor_evidence import Finding, Load
from trovemq.cli.doctor_spread import uneven
from trovemq_console.charts import Point, chart, spark
from trovemq_console.cluster import BrokerAnswer, number_of
from trovemq_console.examination import about
from trovemq_console.pages.console import Console
from trovemq_console.rendering import rate_text
from trovemq_console.sampling import RATED, History
from trovemq_proto.system_topics import is_system_topic

REACH_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a broker that deserves attention: what, and what to do. `note`: it is only
    information."""

    note: bool
    text: str
    to_do: str = ""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker as shown on the page."""

    answer: BrokerAnswer
    rates: dict[str, float | None]
    remarks: tuple[Remark, ...]
    chart: str

    @property
    def level(self) -> str:
        """The level of the worst remark."""
        return "good" if not self.remarks else "warn" if all(one.note for one in self.remarks) else "bad"


async def overview(console: Console, request: Request) -> Response:
    """The page."""
    answers, nameservers = await asyncio.gather(console.cluster.brokers(), _reachable(console))
    history = console.sampler.history
    for answer in answers:
        if answer.counters is not None:
            console.sampler.add_counters(answer.info.name, answer.counters)
    found = console.examination.findings()
    rows = [_row(answer, history, found) for answer in answers]
    of_brokers = {id(one) for answer in answers for one in about(answer.info.name, found)}
    topics, state = await console.cluster.topics(), await console.cluster.state()
    uneven_loads = _uneven(rows, state)
    totals = {name: _sum(row.rates.get(name) for row in rows) for name in RATED}
    return console.respond(
        request,
        "overview.html",
        rows=rows,
        lost=state.lost,
        uneven=uneven_loads,
        findings=[one for one in found if id(one) not in of_brokers],
        examination=console.examination,
        nameservers=nameservers,
        totals=totals,
        stored=sum(stored_bytes(answer.counters) for answer in answers),
        ready=_counted(answers, "ready_messages"),
        in_flight=_counted(answers, "inflight_messages"),
        topic_count=len(topics),
        queue_count=sum(topic.queue_count for topic in topics),
        charts={
            name: chart(_summed(history, rows, name), title, rate_text) for name, title in _CHARTS.items()
        },
    )


_CHARTS: Final = {"messages_in": "messages in a second", "messages_out": "messages out a second"}


def remarks_of(answer: BrokerAnswer) -> tuple[Remark, ...]:
    """Why a broker needs attention; () if it does not."""
    if answer.refused:
        return (Remark(True, f"its counters are not shown: {answer.problem}"),)
    if answer.counters is None:
        return (Remark(False, f"did not answer: {answer.problem}"),)
    state = "drained" if answer.info.drained else "draining"
    back = f"restart it, or: trovemq broker drain {answer.info.name} --undo"
    drained = [Remark(True, f"it is {state}: new messages go to other brokers", back)]
    counted = (Remark(one.note, what, one.to_do) for one, what in remarks(answer.counters))
    return (*(drained if answer.info.draining else ()), *counted)


def _uneven(rows: Iterable[BrokerRow], state: ClusterState) -> list[tuple[str, str]]:
    """The brokers that have much more than another one, with a text; drained ones are not compared."""
    loads: dict[str, Load] = {}
    for row in rows:
        info, counters = row.answer.info, row.answer.counters
        route = state.broker(info.name)
        if counters is not None and route is not None and not info.draining:
            queues = sum(one.queue_count for one in route.topics if not is_system_topic(one.topic))
            loads[info.name] = Load(row.rates.get("messages_in"), stored_bytes(counters), queues)
    return [(most, text) for most, _, text in uneven(loads)]


def stored_bytes(counters: dict[str, int] | None) -> int:
    """The log's size."""
    return number_of(counters, "log_end_offset") - number_of(counters, "log_min_offset")


def _row(answer: BrokerAnswer, history: History, found: Sequence[Finding]) -> BrokerRow:
    name = answer.info.name
    rates = {counter: history.rate(("broker", name, counter)) for counter in RATED}
    points = history.rates(("broker", name, "messages_in"))
    examined = (Remark(one.note, one.what, one.to_do) for one in about(name, found))
    seen = (*remarks_of(answer), *examined)
    return BrokerRow(answer, rates, seen, spark(points, "messages in a second", rate_text))


def _counted(answers: list[BrokerAnswer], name: str) -> int | None:
    """A counter over the brokers that answered; None if none did."""
    known = [answer.counters for answer in answers if answer.counters is not None]
    return sum(number_of(counters, name) for counters in known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _summed(history: History, rows: list[BrokerRow], name: str) -> list[Point]:
    """The sum of the brokers' rates, sample by sample from the newest one back."""
    series = [history.rates(("broker", row.answer.info.name, name)) for row in rows]
    series = [points for points in series if points]
    if not series:
        return []
    shortest = min(map(len, series))
    looks = zip(*(points[-shortest:] for points in series), strict=True)
    return [(look[0][0], sum(value for _, value in look)) for look in looks]


async def _reachable(console: Console) -> list[tuple[str, bool]]:
    """The given servers, and whether each accepts connections."""

    async def reach(address: str) -> tuple[str, bool]:
        host, _, port = address.rpartition(":")
        with suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(REACH_SECONDS):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
            return address, True
        return address, False

    return await asyncio.gather(*(reach(address) for address in console.settings.addresses))
