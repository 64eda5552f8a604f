"""Outages of a subscription: its topic or its group does not exist any more. It waits until they are back."""

from __future__ import annotations

import logging
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

EVERYWHERE: Final = ""
NOT_FOUND: Final = (errors.TOPIC_NOT_FOUND, errors.GROUP_NOT_FOUND)


class Outages:
    """Logs a warning when an outage begins, and a line when it is over. `place`: where it is seen, for
    example a broker; one outage may be seen in several.

    Attributes:
        ended: How many outages are over.
    """

    def __init__(self, topic: str, group: str) -> None:
        self.ended = 0
        self._topic = topic
        self._group = group
        self._places: set[str] = set()

    def begin(self, place: str, error: TroveError) -> None:
        """Something is missing."""
        # A dead-letter topic is created with its first message: until then nothing is missing.
        if not self._places and not self._topic.startswith("%"):
            _log.warning("group %s waits for topic %s: %s", self._group, self._topic, error)
        self._places.add(place)

    def end(self, *places: str) -> None:
        """It is there."""
        if self._places:
            self._places.difference_update(places)
            if not self._places:
                self.ended += 1
                _log.info("group %s receives from topic %s again", self._group, self._topic)
