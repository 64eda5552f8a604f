"""Entries of RocketMQ's tools at the nameserver: texts by namespace and key, in memory.

Tools store the order of topics there (updateOrderConf). They are gone with the process, as routes are;
clients keep the last ones that they got. An order of a topic goes into its route, for each client, so it has
to have the form that clients read.
"""

from __future__ import annotations

import re
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ENTRIES_MAX: Final = 1_024
KEY_LENGTH_MAX: Final = 255
VALUE_LENGTH_MAX: Final = 4_096
ORDER: Final = "ORDER_TOPIC_CONFIG"
"""The namespace of topics with an order, by topic."""
_ORDER_FORM: Final = re.compile(r"[^:;\s]+:[0-9]{1,5}(;[^:;\s]+:[0-9]{1,5})*;?", re.ASCII)


class KeyValues:
    """For use on the event loop only."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], str] = {}

    def put(self, namespace: str, key: str, value: str) -> None:
        """TroveError LIMIT_EXCEEDED, REQUEST_ILLEGAL."""
        if max(len(namespace), len(key)) > KEY_LENGTH_MAX or len(value) > VALUE_LENGTH_MAX:
            text = f"a key has {KEY_LENGTH_MAX} characters at most, a value {VALUE_LENGTH_MAX}"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        if namespace == ORDER and not _ORDER_FORM.fullmatch(value):
            text = (
                f"an order is a number of queues by broker, as in broker-a:4;broker-b:4, not {value[:80]!a}"
            )
            raise TroveError(errors.REQUEST_ILLEGAL, text, field="value")
        if (namespace, key) not in self._entries and len(self._entries) >= ENTRIES_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"there are {ENTRIES_MAX} entries already")
        self._entries[namespace, key] = value

    def get(self, namespace: str, key: str) -> str | None:
        return self._entries.get((namespace, key))

    def delete(self, namespace: str, key: str) -> None:
        self._entries.pop((namespace, key), None)

    def of(self, namespace: str) -> dict[str, str]:
        return {key: value for (where, key), value in self._entries.items() if where == namespace}
