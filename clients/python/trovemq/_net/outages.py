"""Outages of a subscription: its topic or its group does not exist any more. It waits until they are back."""

from __future__ import annotations

import logging
from collections import Counter
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
