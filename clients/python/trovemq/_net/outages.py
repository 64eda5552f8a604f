"""Outages of a subscription, which waits until they are over: its topic or its group does not exist any more,
or a broker cannot be reached."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

EVERYWHERE: Final = ""
NOT_FOUND: Final = (errors.TOPIC_NOT_FOUND, errors.GROUP_NOT_FOUND)


class Outages:
    """Logs a warning when an outage begins, and a line when it has ended. `place`: where it is seen, for
    example a broker; one outage may be seen in several, and by several readers of a place.

    Args:
        topic: The topic, for the log.
        group: The group, for the log.
    """

    def __init__(self, topic: str, group: str) -> None:
        self._topic = topic
        self._group = group
        self._places: set[str] = set()
        self._ended: Counter[str] = Counter()

    def ended(self, place: str) -> int:
        """The number of outages that have ended at this place. A reader takes it before it asks."""
        return self._ended[place]

    def begin(self, place: str, error: TroveError, asked_after: int | None = None) -> None:
        """Something is missing. `asked_after`: `ended` of the place when the reader asked, if other readers
        can see the end first: an answer to an earlier question begins no outage, the next answer does."""
        if asked_after is not None and asked_after != self._ended[place]:
            return
        # A dead-letter topic is created with its first message: until then nothing is missing.
        if not self._places and not self._topic.startswith("%"):
            _log.warning("group %s waits for topic %s: %s", self._group, self._topic, error)
        self._places.add(place)

    def end(self, *places: str) -> None:
        """It is there."""
        ended = self._places.intersection(places)
        if ended:
            self._ended.update(ended)
            self._places -= ended
            if not self._places:
                _log.info("group %s receives from topic %s again", self._group, self._topic)


class BrokerContacts:
    """Logs when a broker of a group's member is gone, and when it is back: once each.

    Args:
        topic: The topic, for the log.
        group: The group, for the log.
        clock: Seconds.
    """

    def __init__(self, topic: str, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._of = f"group {group} of topic {topic}"
        self._clock = clock
        self._joined: set[str] = set()
        self._lost: dict[str, float] = {}

    def lost(self, broker: str, error: TroveError, *, opened: bool) -> None:
        """The connection broke, or could not be made. Before the subscription is `opened`, that of a broker
        that never answered is an error for the caller."""
        if broker in self._lost or not (opened or broker in self._joined):
            return
        self._lost[broker] = self._clock()
        _log.warning("%s: broker %s is gone, and is tried again: %s", self._of, broker, error)

    def joined(self, broker: str) -> None:
        """The broker has answered."""
        self._joined.add(broker)
        since = self._lost.pop(broker, None)
        if since is not None:
            away_s = self._clock() - since
            # as visible as the loss, where only warnings are shown
            _log.warning("%s: broker %s is back, after %.1f s", self._of, broker, away_s)
