"""QueryMessage by key without a broker's name: the messages of all brokers that have the topic, newest first.

Each broker is asked for a page. The newest messages of all pages are the answer; a broker of which it takes a
part only is asked again for exactly that many, so that its place continues after the last of them. A
message that is stored between the two moves the part, and is neither left out nor given twice.

| a broker                          | then                                                                |
|-----------------------------------|---------------------------------------------------------------------|
| lacks the topic                   | it has no messages; TOPIC_NOT_FOUND if all lack it                  |
| is away, or not in time           | the others' messages, with MULTIPLE_RESULTS, which names it; the    |
|                                   | next page asks it again. Its error if no broker has answered        |
| refuses                           | its error                                                           |

Bounds: ASKED_AT_ONCE brokers at a time, each for ASK_S_MAX, and both rounds within the caller's deadline. No
more than one answer is kept: its messages and bytes are those of one broker's page.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from trovemq_broker.server.rocketmq.forwards import Forwards
from trovemq_broker.server.wire.merged_queries import (
    Part,
    merged_reply,
    part_of,
    part_request,
    places_of,
    scroll_id_of,
    store_ms,
)
from trovemq_broker.server.wire.resources import topic_to_read
from trovemq_broker.server.wire.statuses import Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

Method: TypeAlias = Callable[[Any, Context], Awaitable[Any]]

ASKED_AT_ONCE: Final = 8
ASK_S_MAX: Final = 5.0
CALL_S: Final = 30.0
"""Of a caller without a deadline."""
_METHOD: Final = "QueryMessage"
_Found: TypeAlias = tuple[str, Any]
"""A broker's name, and a message of it."""


class Limits(NamedTuple):
    """The messages of an answer, where the request has no number, and the bytes after which it ends."""

    messages_max: int
    bytes_max: int


class KeyQueries:
    """Wraps the method of this broker."""

    def __init__(self, forwards: Forwards, limits: Limits, method: Method) -> None:
        self._forwards = forwards
        self._method = method
        self.limits: Final = limits

    async def call(self, request: Any, context: Context) -> Any:
        """The answer of all brokers. Raises TroveError."""
        places = places_of(request.scroll_id)
        if places is None and not request.scroll_id:
            topic = topic_to_read(request.topic)
            others = [*self._forwards.topic_brokers(topic), *self._forwards.placed_away(topic)]
            places = dict.fromkeys([self._forwards.broker, *others], "") if others else None
        if places is None:
            return await self._method(request, context)
        return await _Query(self, request, context, places).reply()

    async def ask(self, broker: str, request: Any, context: Context) -> Part | TroveError:
        """The error of a broker that is away, or lacks the topic. Raises other TroveErrors."""
        if broker == self._forwards.broker:
            try:
                return part_of(await self._method(request, context), broker)
            except TroveError as error:
                if error.spec is not errors.TOPIC_NOT_FOUND:
                    raise
                return error
        try:
            reply = await self._forwards.one(broker, _METHOD, request.SerializeToString(), context)
        except TroveError as error:
            return error
        return part_of(reply, broker)


class _Query:
    """One call. `places`: where it begins on each broker that may have messages."""

    def __init__(self, queries: KeyQueries, request: Any, context: Context, places: dict[str, str]) -> None:
        self._queries = queries
        self._request = request
        self._context = context
        self._places = places
        self._parts: dict[str, Part] = {}
        self._refusals: dict[str, TroveError] = {}
        self._newest: list[_Found] = []

    async def reply(self) -> Any:
        """Raises TroveError."""
        count_max = self._request.max_message_nums or self._queries.limits.messages_max

        async def first(broker: str) -> None:
            if part := await self._part(broker, count_max):
                found = [(broker, message) for message in part.messages]
                self._newest = self._cut(_merged(self._newest, found), count_max)

        await self._each(first, [*self._places])
        if not self._parts:
            lacking = [one for one in self._refusals.values() if one.spec is errors.TOPIC_NOT_FOUND]
            away = [one for one in self._refusals.values() if one.spec is not errors.TOPIC_NOT_FOUND]
            raise (away or lacking)[0]
        await self._take([*self._up_to_the_first_end()])
        missing = [
            f"broker {broker}: {error.message}"
            for broker, error in sorted(self._refusals.items())
            if error.spec is not errors.TOPIC_NOT_FOUND
        ]
        return merged_reply([one for _, one in self._newest], scroll_id_of(self._places), missing)

    async def _each(self, ask: Callable[[str], Awaitable[None]], brokers: Sequence[str]) -> None:
        """Asks the brokers within half of the time that the caller has left. Raises TroveError."""
        remaining, loop = self._context.time_remaining(), asyncio.get_running_loop()
        until = loop.time() + (CALL_S if remaining is None else remaining) / 2
        free = asyncio.Semaphore(ASKED_AT_ONCE)

        async def one(broker: str) -> None:
            try:
                async with asyncio.timeout_at(until), free, asyncio.timeout(ASK_S_MAX):
                    await ask(broker)
            except TimeoutError:
                self._refusals[broker] = TroveError(errors.REQUEST_TIMEOUT, "it did not answer in time")

        outcomes = await asyncio.gather(*map(one, brokers), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _part(self, broker: str, count_max: int) -> Part | None:
        """A page of the broker, from its place on; None if it lacks the topic or is away."""
        request = part_request(self._request, self._places[broker], count_max)
        answer = await self._queries.ask(broker, request, self._context)
        if isinstance(answer, TroveError):
            self._refusals[broker] = answer
            if answer.spec is errors.TOPIC_NOT_FOUND:
                del self._places[broker]
            return None
        self._parts[broker] = Part((), answer.scroll_id, len(answer.messages))
        return answer

    def _cut(self, found: list[_Found], count_max: int) -> list[_Found]:
        """The first of the messages: as many, and of as many bytes, as an answer has."""
        size = 0
        for number, (_, message) in enumerate(found[:count_max]):
            size += message.ByteSize()
            if size > self._queries.limits.bytes_max:
                return found[: max(number, 1)]
        return found[:count_max]

    def _up_to_the_first_end(self) -> Iterator[_Found]:
        """The messages up to the last one of a page that continues: the next one there may be newer than all
        that follow."""
        left = {broker: part.total for broker, part in self._parts.items()}
        unfinished = {broker for broker, part in self._parts.items() if part.scroll_id}
        for broker, message in self._newest:
            if any(not left[one] for one in unfinished):
                return
            left[broker] -= 1
            yield broker, message

    async def _take(self, chosen: list[_Found]) -> None:
        """Makes these messages the answer, and sets the places after them."""
        taken = Counter(broker for broker, _ in chosen)
        cut = {broker for broker, part in self._parts.items() if 0 < taken[broker] < part.total}
        self._newest = [one for one in chosen if one[0] not in cut]
        for broker, part in [*self._parts.items()]:
            if taken[broker] == part.total:
                self._go_to(broker, part.scroll_id)

        async def again(broker: str) -> None:
            if part := await self._part(broker, taken[broker]):
                self._newest = _merged(self._newest, [(broker, message) for message in part.messages])
                self._go_to(broker, part.scroll_id)

        await self._each(again, sorted(cut))

    def _go_to(self, broker: str, scroll_id: str) -> None:
        if scroll_id:
            self._places[broker] = scroll_id
        else:
            del self._places[broker]


def _merged(some: list[_Found], others: list[_Found]) -> list[_Found]:
    """Both, newest first; the messages of one broker stay in their order."""
    found: list[_Found] = []
    first, second = 0, 0
    while first < len(some) and second < len(others):
        if store_ms(some[first][1]) >= store_ms(others[second][1]):
            found.append(some[first])
            first += 1
        else:
            found.append(others[second])
            second += 1
    return [*found, *some[first:], *others[second:]]
