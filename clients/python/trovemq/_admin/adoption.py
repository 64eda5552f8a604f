"""Takes a topic that brokers had before they shared a configuration into the cluster's table, as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import TopicDescription
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class Topics(Protocol):
    """The calls of `Admin`."""

    async def describe_topic(self, name: str) -> BrokerAnswers[TopicDescription]: ...

    async def create_topic(
        self,
        name: str,
        queue_count: int,
        message_type: str,
        *,
        options: Mapping[str, str],
        brokers: Sequence[str],
    ) -> BrokerAnswers[TopicDescription]: ...

    async def alter_topic(
        self, name: str, *, placement: Mapping[str, int]
    ) -> BrokerAnswers[TopicDescription]: ...


def is_outside(topic: TopicDescription) -> bool:
    """Whether the broker has queues of the topic that are not in the cluster's table."""
    return not topic.system and topic.broker not in topic.placement


async def adopt(topics: Topics, name: str, owner: str) -> BrokerAnswers[TopicDescription]:
    """Creates the topic in the table, or adds to its placement, so that it lies where it is. Raises
    TroveError TOPIC_NOT_FOUND, TOPIC_SETTINGS_DIFFER, and those of `create_topic` and `alter_topic`."""
    found = await topics.describe_topic(name)
    _check_equal(name, found)
    listed = next((one.placement for one in found if one.placement), {})
    there = {one.broker: one.queue_count for one in found if is_outside(one)}
    placement = {**there, **listed}
    if not there:
        return found
    if not listed:
        (most, _), *_ = Counter(there.values()).most_common(1)
        count = there.get(owner, most)
        brokers = [broker for broker, queues in there.items() if queues == count]
        first = found[0]
        made = await topics.create_topic(
            name, count, first.message_type, options=first.options, brokers=brokers
        )
        if len(brokers) == len(there):
            return made
    return await topics.alter_topic(name, placement=placement)


def _check_equal(name: str, found: Sequence[TopicDescription]) -> None:
    settings: dict[str, list[str]] = {}
    for one in found:
        options = ", ".join(f"{option} {value}" for option, value in sorted(one.options.items()))
        settings.setdefault(f"type {one.message_type}, options {options or 'none'}", []).append(one.broker)
    if len(settings) > 1:
        text = "; ".join(f"{', '.join(brokers)} ({what})" for what, brokers in settings.items())
        what = f"topic {name} has other settings on each of {text}: make them equal with topic alter --broker"
        raise TroveError(errors.TOPIC_SETTINGS_DIFFER, what)
