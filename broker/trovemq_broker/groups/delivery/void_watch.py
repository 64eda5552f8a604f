"""Notifies those who have sent a group's messages that deliveries have become void: by a reset of the group,
or because the group or the topic was deleted.

Invariants
- A watcher is called after the leases are void, in the same step of the loop: no message of the pair was
  delivered between.
- One change calls each watcher of a pair once, however many queues it concerns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.group_topic_key import GroupTopicKey


class VoidWatch:
    """The watchers of all pairs: one for each open stream."""

    def __init__(self) -> None:
        self._watchers: dict[GroupTopicKey, dict[Callable[[], object], None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._watchers.values()))

    def begin(self, key: GroupTopicKey, call: Callable[[], object]) -> None:
        """`call` is called when deliveries of this pair have become void, until `end`."""
        self._watchers.setdefault(key, {})[call] = None

    def end(self, key: GroupTopicKey, call: Callable[[], object]) -> None:
        """It is not called any more. Nothing happens if it did not watch."""
        watchers = self._watchers.get(key)
        if watchers is not None:
            watchers.pop(call, None)
            if not watchers:
                del self._watchers[key]

    def void(self, pairs: Iterable[GroupTopic]) -> None:
        """Messages of these pairs that were in flight are not any more."""
        for pair in pairs:
            for call in list(self._watchers.get((pair.group, pair.topic), ())):
                call()
