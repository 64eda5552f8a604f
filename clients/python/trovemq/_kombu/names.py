"""From kombu's queues to topics: names are escaped reversibly, and queues of one process share a topic.

A queue is *shared* if it belongs to one process and ends with it: replies, remote control, events. Its
messages are on the control topic, which each process reads from the moment at which it declared such a queue.
All other queues are topics.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

TOPIC_NAME_MAX: Final = 127
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEPT: Final = "-_"
_ALSO_ESCAPED: Final = {".": "%2E", "~": "%7E"}
"""Characters that `quote` keeps and a topic's name may not have."""


def topic_of(queue: str, prefix: str = "") -> str:
    """The topic of a queue: letters, digits, - and _ stay, other characters become %XX as in a URL.

    Raises TroveError TOPIC_ILLEGAL if it is empty or longer than a topic's name may be.
    """
    escaped = quote(queue, safe=_KEPT)
    for character, code in _ALSO_ESCAPED.items():
        escaped = escaped.replace(character, code)
    topic = prefix + escaped
    if not queue or len(topic) > TOPIC_NAME_MAX:
        text = (
            f"the queue {queue!r} makes a topic's name of {len(topic)} characters; 1 to {TOPIC_NAME_MAX} are"
            " possible: give the queue a shorter name (characters other than letters, digits, - and _ count"
            " three or more)"
        )
        raise TroveError(errors.TOPIC_ILLEGAL, text, queue=queue)
    return topic


def queue_of(topic: str, prefix: str = "") -> str:
    """The queue of a topic: the inverse of `topic_of`."""
    return unquote(topic.removeprefix(prefix))


def is_shared_name(queue: str) -> bool:
    """Whether the name alone says that the queue is one of a process: Celery's queues for remote control and
    events, and names with a UUID, as replies have. A sender knows no more than the name."""
    return queue.endswith(".pidbox") or queue.startswith("celeryev") or _UUID.search(queue) is not None
