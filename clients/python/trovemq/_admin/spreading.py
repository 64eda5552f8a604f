"""Where a topic lies: `topic spread` changes its placement. Messages stay, and are consumed where they are.

A FIFO topic is changed in steps, for its message groups get other queues:

| step     | until                                                                                         |
|----------|-----------------------------------------------------------------------------------------------|
| closing  | every broker of the placement refuses new messages (option `writes` = closed): senders wait   |
| waiting  | every group has consumed these queues                                                         |
| moving   | every broker has the new placement                                                            |
| settling | clients have had time to learn it                                                             |
| done     | the topic is open                                                                             |

An end before `moving` opens the topic again, with the placement that it had; a later one leaves it closed, as
does a process that is killed: the next one finds that, and continues. Options and placement are the same on
all brokers. Of two spreads at once none opens the topic while the other moves it, and the owner of the
configuration refuses to move one that is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from trovemq._net.all_brokers import NOT_ANSWERED, outcomes_of
from trovemq._net.connections import ConnectionPool
from trovemq._net.routes import FIFO
from trovemq._wire.groups import GroupCalls
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import NO_PLACEMENT, QueueRemainder, TopicDescription, TopicSpread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

POLL_S: Final = 0.3
SETTLE_S: Final = 5.0
"""SDK clients have new routes within a second."""
WRITES: Final = "writes"
CLOSED: Final = "closed"
OPEN: Final = "open"


class Alter(Protocol):
    """AlterTopic at the owner of the cluster's configuration."""

    async def __call__(
        self, placement: Mapping[str, int], options: Mapping[str, str]
    ) -> TopicDescription: ...


Describe = Callable[[], Awaitable[BrokerAnswers[TopicDescription]]]
LeftOn = Callable[[str], Awaitable[Sequence[QueueRemainder]]]
"""The messages that groups have not consumed on a broker. TroveError of NOT_ANSWERED, BROKER_NOT_FOUND: it is
away."""


def placement_on(
    present: Mapping[str, int], brokers: Sequence[str], queue_count: int | None
) -> dict[str, int]:
    """The placement on these brokers. One that is new gets as many queues as the others have; with a
    `queue_count` each has as many."""
    most = max(present.values(), default=0)
    return {broker: queue_count or present.get(broker) or most for broker in brokers}


class Spreading:
    """One change of one topic's placement. `clock_s`, `sleep`: tests have their own."""

    def __init__(
        self,
        topic: str,
        describe: Describe,
        alter: Alter,
        left_on: LeftOn,
        *,
        settle_s: float = SETTLE_S,
        clock_s: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._topic = topic
        self._describe = describe
        self._alter = alter
        self._left_on = left_on
        self._settle_s = settle_s
        self._clock_s = clock_s or asyncio.get_running_loop().time
        self._sleep = sleep

    async def run(
        self, brokers: Sequence[str], queue_count: int | None, *, accept_disorder: bool
    ) -> AsyncGenerator[TopicSpread]:
        """The steps; the last one is `done`. Raises TroveError."""
        found = list(await self._describe())
        before = found[0].placement if found else NO_PLACEMENT
        if any(one.placement != before for one in found):
            before = (await self._alter({}, {})).placement  # the owner's, which others do not have yet
        if not before:
            text = (
                f"topic {self._topic} has no placement: the cluster's configuration has no owner"
                " (setting config_owner), so each broker has its own topics: trovemq topic create --broker"
            )
            raise TroveError(errors.REQUEST_ILLEGAL, text, topic=self._topic)
        wanted = placement_on(before, brokers, queue_count)
        closed = any(one.options.get(WRITES) == CLOSED for one in found)
        ordered = any(one.message_type == FIFO for one in found) and not accept_disorder
        if not ordered:
            options = {WRITES: OPEN} if accept_disorder else {}
            pending: tuple[str, ...] = ()
            if wanted != before or (closed and options):
                pending = (await self._alter(wanted, options)).pending
            yield TopicSpread(self._topic, "done", wanted, pending=pending)
        elif wanted == before and not closed:
            yield TopicSpread(self._topic, "done", wanted)
        else:
            steps = self._in_order(before, wanted, closed=closed)
            try:
                async for step in steps:
                    yield step
            finally:
                await steps.aclose()

    async def _in_order(
        self, before: Mapping[str, int], wanted: Mapping[str, int], *, closed: bool
    ) -> AsyncGenerator[TopicSpread]:
        topic, may_open = self._topic, True
        try:
            if not closed:
                yield TopicSpread(topic, "closing", before)
                await self._alter({}, {WRITES: CLOSED})
            if wanted != before:
                while pending := await self._not_closed(before):
                    yield TopicSpread(topic, "closing", before, pending=pending)
                    await self._sleep(POLL_S)
                while left := await self._unconsumed(before):
                    yield TopicSpread(topic, "waiting", before, left=left)
                    await self._sleep(POLL_S)
                may_open = False
                await self._alter(wanted, {})
            may_open = False
            while pending := await self._not_moved(wanted):
                yield TopicSpread(topic, "moving", wanted, pending=pending)
                await self._sleep(POLL_S)
            ends = self._clock_s() + self._settle_s
            while self._clock_s() < ends:
                yield TopicSpread(topic, "settling", wanted)
                await self._sleep(POLL_S)
            await self._check_alone(wanted)
            opened = await self._alter({}, {WRITES: OPEN})
        except BaseException as error:
            await self._put_back(error, before if may_open else None)
            raise
        yield TopicSpread(topic, "done", wanted, pending=opened.pending)

    async def _put_back(self, error: BaseException, before: Mapping[str, int] | None) -> None:
        """Opens the topic with the placement `before`; None: groups may have two queues meanwhile, so it
        stays closed. The error says so."""
        text = "it is still closed, and its senders wait: run the command again"
        if before is not None:
            try:
                await self._check_alone(before)
                await self._alter({}, {WRITES: OPEN})
                return
            except TroveError as failure:
                text = f"{text} ({failure.message})"
        if isinstance(error, TroveError):
            raise TroveError(error.spec, f"{error.message}; {text}", **error.fields) from error

    async def _check_alone(self, placement: Mapping[str, int]) -> None:
        """Raises CONFIG_VERSION_CONFLICT if another spread has changed the placement: it opens the topic."""
        found = {one.broker: dict(one.placement) for one in await self._describe()}
        other = next((one for one in found.values() if one != placement), None)
        if other is not None:
            text = f"another command has changed the queues of topic {self._topic} to {other}"
            raise TroveError(errors.CONFIG_VERSION_CONFLICT, text, topic=self._topic)

    # --- the rest of a step ---------------------------------------------------------------------
    async def _not_closed(self, placement: Mapping[str, int]) -> tuple[str, ...]:
        """The brokers of the placement that may still take messages; one that is away is one of them."""
        closed = {one.broker for one in await self._describe() if one.options.get(WRITES) == CLOSED}
        return tuple(sorted(placement.keys() - closed))

    async def _not_moved(self, wanted: Mapping[str, int]) -> tuple[str, ...]:
        """The live brokers that have another placement, and those of the placement that lack its queues."""
        found = {one.broker: one for one in await self._describe()}
        lacking = {name for name in wanted if name not in found or len(found[name].queues) < wanted[name]}
        return tuple(sorted(lacking | {n for n, one in found.items() if dict(one.placement) != wanted}))

    async def _unconsumed(self, placement: Mapping[str, int]) -> tuple[QueueRemainder, ...]:
        """The messages that groups have not consumed; a broker that is away may have some."""
        brokers = sorted(placement)
        left: list[QueueRemainder] = []
        for broker, found in zip(brokers, await outcomes_of(map(self._left_on, brokers)), strict=True):
            if not isinstance(found, TroveError):
                left += found
            elif found.spec in (*NOT_ANSWERED, errors.BROKER_NOT_FOUND):
                left.append(QueueRemainder("", broker, -1, 0))
            else:
                raise found
        return tuple(left)


def left_on(pool: ConnectionPool, topic: str) -> LeftOn:
    """Asks the brokers of a client."""

    async def ask(broker: str) -> list[QueueRemainder]:
        calls = GroupCalls(pool.connection(pool.routes.broker(broker)), broker)
        left = []
        for group in await calls.list_all():
            if topic not in group.topics:
                continue
            try:
                queues = await calls.lag(group.group, topic)
            except TroveError as error:
                if error.spec not in (errors.GROUP_NOT_FOUND, errors.TOPIC_NOT_FOUND):
                    raise
                continue  # it was deleted meanwhile
            left += [QueueRemainder(group.group, broker, one.queue_id, one.lag) for one in queues if one.lag]
        return left

    return ask
