"""The topics from which a group receives a topic's messages: the topic itself and its retry topics.

| kind          | name                 | made by                                                            |
|---------------|----------------------|--------------------------------------------------------------------|
| TOPIC         | `topic`              |                                                                    |
| POP_RETRY     | `%RETRY%group_topic` | RocketMQ's pop consumers, and this broker                          |
| POP_RETRY_V2  | `%RETRY%group+topic` | RocketMQ with enableRetryTopicV2                                   |
| CLASSIC_RETRY | `%RETRY%group`       | RocketMQ's push consumers; holds messages of all topics            |
"""

from __future__ import annotations

from typing import Final

from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.topics.names import RETRY_PREFIX

RETRY_TOPIC_PROPERTY: Final = "RETRY_TOPIC"
"""The original topic of a message in a classic retry topic."""
RETRY_KINDS: Final = (SourceKind.POP_RETRY, SourceKind.POP_RETRY_V2, SourceKind.CLASSIC_RETRY)


def source_topic(kind: SourceKind, group: str, topic: str) -> str:
    """Where messages of that kind lie."""
    if kind is SourceKind.TOPIC:
        return topic
    if kind is SourceKind.POP_RETRY:
        return f"{RETRY_PREFIX}{group}_{topic}"
    if kind is SourceKind.POP_RETRY_V2:
        return f"{RETRY_PREFIX}{group}+{topic}"
    return f"{RETRY_PREFIX}{group}"


def kind_of(group: str, name: str) -> tuple[SourceKind, str]:
    """The role of a stored topic for the group, and its original topic: "" of a classic retry topic, whose
    messages name it (RETRY_TOPIC_PROPERTY)."""
    head = f"{RETRY_PREFIX}{group}"
    if not name.startswith(head):
        return SourceKind.TOPIC, name
    rest = name[len(head) :]
    if not rest:
        return SourceKind.CLASSIC_RETRY, ""
    if rest[0] == "_" and len(rest) > 1:
        return SourceKind.POP_RETRY, rest[1:]
    if rest[0] == "+" and len(rest) > 1:
        return SourceKind.POP_RETRY_V2, rest[1:]
    return SourceKind.TOPIC, name
