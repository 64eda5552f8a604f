"""Readings of every broker of a cluster: one that does not answer in time hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trovemq.cli.config_problems import lacked_versions
from trovemq.cli.session import Session
from trovemq.cli.times import duration_text
from trovemq.cli.top_rates import AWAY, LOST, BrokerReading
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.system_topics import is_system_topic

if TYPE_CHECKING:
    from trovemq import BrokerInfo, BrokerRoute, Client, ClusterState, ConfigStatus, QueueLag

GROUPS_MAX: Final = 1_000
"""Groups of a broker whose lag is asked for, the first ones by name."""
ASKED_AT_ONCE_MAX: Final = 16
ANSWER_MIN_S: Final = 5.0
"""A broker that has not answered after that, or after two intervals, is away; after that it has one interval,
and the others are shown at each."""
LACKED_NAMED_MAX: Final = 3
TOPIC: Final = "topic"


class Readings:
    """Reads a cluster again and again. A server that is away leaves the brokers of the last reading."""

    def __init__(self, session: Session, client: Client, interval_s: float) -> None:
        self._session = session
        self._client = client
        self._interval_s = interval_s
        self._answer_s = min(session.timeout_s, max(ANSWER_MIN_S, 2 * interval_s))
        self._away: set[str] = set()
        self._state: ClusterState | None = None
        self._statuses: list[ConfigStatus] = []
        """Of the brokers that share a configuration, in the last reading."""
        self.groups_left_out = 0
        """Groups beyond the limit in the last reading, of the broker with most of them."""

    async def read(self) -> list[BrokerReading]:
        """Every broker now. Raises TroveError if no server has ever answered."""
        state = await self._cluster()
        self.groups_left_out = 0
        lacked = lacked_topics(state.brokers)
        asked = (self._broker(route.broker, lacked[route.broker.name]) for route in state.brokers)
        lost = [
            BrokerReading(one.name, LOST, f"{duration_text(one.lost_ms)} ago, without a regular stop")
            for one in state.lost
        ]
        self._statuses = []
        found = await asyncio.gather(*asked)
        self._away = {one.name for one in found if one.state == AWAY}
        return [*self._with_shared(found), *lost]

    def _with_shared(self, found: Sequence[BrokerReading]) -> Iterator[BrokerReading]:
        """The readings, with the topics and changes of a shared configuration that a broker lacks."""
        lacked = {one.broker: lacked_of_shared(one, self._statuses) for one in self._statuses}
        for one in found:
            text = lacked.get(one.name, "")
            yield replace(one, note="; ".join(filter(None, (one.note, text)))) if text else one

    async def _cluster(self) -> ClusterState:
        try:
            async with asyncio.timeout(self._session.timeout_s if self._state is None else self._answer_s):
                self._state = await self._client.admin.cluster()
        except (TroveError, TimeoutError) as failure:
            if self._state is None:
                if isinstance(failure, TroveError):
                    raise
                raise TroveError(errors.REQUEST_TIMEOUT, f"{self._session.server} did not answer") from None
        return self._state

    async def _broker(self, info: BrokerInfo, lacked: Collection[str]) -> BrokerReading:
        loop = asyncio.get_running_loop()
        found = BrokerReading(info.name, _state(info), _lacked_text(lacked))
        try:
            async with asyncio.timeout(self._interval_s if info.name in self._away else self._answer_s):
                (answer,) = await self._client.admin.statistics(info.name, topics=True)
                topics = {one.topic: one for one in answer.topics if not is_system_topic(one.topic)}
                found = replace(found, at=loop.time(), counters=answer.counters, topics=topics)
                if info.config is not None:
                    await self._ask_status(info.name)
                return replace(found, lags=await self._lags(info.name))
        except TimeoutError:
            problem = errors.REQUEST_TIMEOUT.symbol
        except TroveError as failure:
            problem = failure.symbol
        if found.counters is None and problem != errors.ACCESS_DENIED.symbol:
            return replace(found, state=AWAY, note=problem)
        return replace(found, note=problem)

    async def _ask_status(self, broker: str) -> None:
        """Adds its status. One that may not be asked is in no note."""
        try:
            self._statuses += await self._client.admin.config.status(broker)
        except TroveError as failure:
            if failure.spec is not errors.ACCESS_DENIED:
                raise

    async def _lags(self, broker: str) -> dict[str, Sequence[QueueLag]]:
        groups = self._client.admin.groups
        names = sorted({one.group for one in await groups.list_all(broker=broker)})
        self.groups_left_out = max(self.groups_left_out, len(names) - GROUPS_MAX)
        slots = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def lag_of(name: str) -> Sequence[QueueLag]:
            async with slots:
                try:
                    return await groups.lag(name, broker=broker)
                except TroveError as failure:
                    if failure.spec in (errors.GROUP_NOT_FOUND, errors.ACCESS_DENIED):
                        return ()  # deleted meanwhile, or of others
                    raise

        asked = names[:GROUPS_MAX]
        return dict(zip(asked, await asyncio.gather(*map(lag_of, asked)), strict=True))


def _state(info: BrokerInfo) -> str:
    if info.drained:
        return "drained"
    return "draining" if info.draining else "serving"


def lacked_topics(routes: Sequence[BrokerRoute]) -> dict[str, list[str]]:
    """The topics that each serving broker lacks and that another one of its cluster has. Brokers that share a
    configuration have those that it gives them."""
    found: dict[str, list[str]] = {route.broker.name: [] for route in routes}
    compared = [one for one in routes if one.broker.config is None and not one.broker.draining]
    for route in compared:
        own = {topic.topic for topic in route.topics}
        others = (one for one in compared if one.broker.cluster == route.broker.cluster)
        everything = {topic.topic for one in others for topic in one.topics}
        found[route.broker.name] = sorted(name for name in everything - own if not is_system_topic(name))
    return found


def lacked_of_shared(status: ConfigStatus, statuses: Sequence[ConfigStatus]) -> str:
    """The topics that the broker could not make, and how many changes of the table it does not have; empty if
    it has all."""
    topics = sorted(one.name for one in status.failed if one.kind == TOPIC)
    changes = lacked_versions(status, statuses) or 0
    missing = f"lacks {changes:,} change{'s' * (changes > 1)} of the configuration" if changes else ""
    return "; ".join(filter(None, (_lacked_text(topics), missing)))


def _lacked_text(lacked: Collection[str]) -> str:
    if not lacked:
        return ""
    named = ", ".join(list(lacked)[:LACKED_NAMED_MAX])
    more = len(lacked) - LACKED_NAMED_MAX
    return f"lacks {named}" + (f" and {more:,} more topics" if more > 0 else "")
