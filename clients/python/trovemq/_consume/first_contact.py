"""Sets where a group begins in a topic: once, at its first contact with the topic, for the whole cluster.

A group has had contact with a topic if it has an offset of any of its queues, on any broker. `start` counts
for the first contact alone, and is noted there for every queue; queues that appear later, with the topic's
growth or on another broker, are read from their beginning.

| the group's offsets                                    | the queues without one begin at |
|--------------------------------------------------------|---------------------------------|
| none, and every broker that has the topic was asked    | `start`                         |
| some, on any broker                                    | their beginning                 |
| none is known, and a broker could not be asked         | their beginning                 |

A broker decides this for its own queues in one step. Over several brokers two members may begin at the same
time: one that sees offsets on some brokers only asks again, because the other may be writing the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final

from trovemq._net.all_brokers import outcomes_of
from trovemq._net.connections import ConnectionPool
from trovemq.models.group import GroupReset
from trovemq.starts import Start, timestamp_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

ASKED_MAX: Final = 5
ASKED_PAUSE_S: Final = 0.1

Reset = Callable[..., Awaitable[list[GroupReset]]]
"""`Groups.reset`."""


class _Contact(Enum):
    """One broker's answer."""

    SOME = "the group has an offset"
    NONE = "it has none"
    UNKNOWN = "the broker cannot be asked"


class FirstContact:
    """The start of one group in one topic. Each method raises TroveError GROUP_NOT_FOUND, TOPIC_NOT_FOUND,
    BROKER_UNREACHABLE and other refusals of a broker."""

    def __init__(self, pool: ConnectionPool, reset: Reset, group: str, topic: str, start: Start) -> None:
        self._pool = pool
        self._reset = reset
        self._group = group
        self._topic = topic
        self._start = start

    async def begin(self) -> list[GroupReset]:
        """Sets all queues without an offset, on every broker that can be reached: at least on one."""
        names = [broker.name for broker in self._pool.routes.brokers_of(self._topic)]
        known = self._start != "earliest" and await self._has_been(names)
        return await self._set(names, "earliest" if known else self._start)

    async def follow(self, broker: str) -> None:
        """The subscription runs, and the broker has the topic: perhaps it got it later, or made it again."""
        await self._set([broker], "earliest")

    async def begin_anew(self, broker: str) -> None:
        """The subscription runs, and the group is not there any more. One of that name is a new group: its
        first contact is now."""
        await self._set([broker], self._start)

    def topic_was_awaited(self) -> None:
        """The topic did not exist when the subscription began: all its messages are later ones."""
        if self._start == "latest":
            self._start = "earliest"

    async def _has_been(self, names: Sequence[str]) -> bool:
        """Whether the group has had contact with the topic, or may have had it."""
        lost = await self._lost(names)
        if len(names) == 1 and not lost:
            return False  # the broker knows it
        for _ in range(ASKED_MAX):
            answers = dict.fromkeys(lost, _Contact.UNKNOWN)
            for name, outcome in zip(names, await outcomes_of(map(self._ask, names)), strict=True):
                if isinstance(outcome, TroveError):
                    raise outcome
                answers[name] = outcome
            kinds = set(answers.values())
            if not {_Contact.SOME, _Contact.NONE} <= kinds:
                break
            await asyncio.sleep(ASKED_PAUSE_S)
        if _Contact.UNKNOWN in kinds and _Contact.SOME not in kinds:
            silent = [name for name, answer in answers.items() if answer is _Contact.UNKNOWN]
            _log.warning(
                "group %s begins at the first messages of topic %s: broker %s cannot be asked whether it has"
                " read the topic before",
                self._group,
                self._topic,
                ", ".join(sorted(silent)),
            )
        return kinds != {_Contact.NONE}

    async def _lost(self, names: Sequence[str]) -> set[str]:
        """Brokers that had the topic and are in no route."""
        known = {broker.name for broker in await self._pool.lost_brokers_of(self._topic)}
        return known.union(self._pool.routes.lost_brokers_of(self._topic)).difference(names)

    async def _ask(self, broker: str) -> _Contact:
        try:
            entries = await self._reset(
                self._group, self._topic, to_earliest=True, preview=True, broker=broker
            )
        except TroveError as error:
            if error.spec in (errors.GROUP_NOT_FOUND, errors.TOPIC_NOT_FOUND):
                return _Contact.NONE
            if error.retriable:
                return _Contact.UNKNOWN
            raise
        if any(entry.offset_before is not None for entry in entries):
            return _Contact.SOME
        return _Contact.NONE

    async def _set(self, names: Sequence[str], start: Start) -> list[GroupReset]:
        target = _target_of(start)
        calls = [
            self._reset(self._group, self._topic, only_new=True, broker=name, **target) for name in names
        ]
        outcomes = await outcomes_of(calls)
        failures = [outcome for outcome in outcomes if isinstance(outcome, TroveError)]
        done = [outcome for outcome in outcomes if not isinstance(outcome, TroveError)]
        for failure in failures:
            if not done or not (failure.retriable or failure.spec is errors.TOPIC_NOT_FOUND):
                raise failure
        return [entry for entries in done for entry in entries]


def _target_of(start: Start) -> dict[str, Any]:
    """The arguments of `Groups.reset`."""
    if isinstance(start, datetime):
        return {"timestamp": timestamp_of(start)}
    return {"to_earliest": True} if start == "earliest" else {"to_latest": True}
