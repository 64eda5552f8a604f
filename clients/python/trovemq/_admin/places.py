"""Where the topics of a shared configuration lie, as those brokers say that were asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from trovemq.models.cluster import TopicDescription


def with_places(topics: Iterable[TopicDescription], asked: Collection[str]) -> Iterator[TopicDescription]:
    """The topics of the brokers that were asked, then each place on another one, once. A topic without a
    broker's name lies on others alone."""
    others: dict[tuple[str, str], TopicDescription] = {}
    for topic in topics:
        if topic.broker:
            yield topic
        for name, count in topic.placement.items():
            if name not in asked and (topic.topic, name) not in others:
                others[topic.topic, name] = replace(topic, broker=name, queue_count=count)
    yield from others.values()
