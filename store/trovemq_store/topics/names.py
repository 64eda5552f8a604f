"""Which names topics and consumer groups may have, and which are RocketMQ's own.

Source of the character set, the lengths and the reserved names: RocketMQ 5.4.0's TopicValidator and
Validators. Names are case-sensitive. Only creating and sending are checked: whatever topic a store
already has can be read and queried.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.system_topics import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    is_system_topic,
)

__all__ = [
    "DEAD_LETTER_PREFIX",
    "GROUP_NAME_SIZE_MAX",
    "RETRY_PREFIX",
    "SYSTEM_GROUPS",
    "SYSTEM_GROUP_PREFIX",
    "SYSTEM_PREFIX",
    "SYSTEM_TOPICS",
    "TOPIC_NAME_SIZE_MAX",
    "USER_GROUP_NAME_SIZE_MAX",
    "check_group_name",
    "check_topic_name",
    "check_user_group_name",
    "groups_of_retry_topic",
    "is_brokers_own",
    "is_system_group",
    "is_system_topic",
    "retry_topics",
]

TOPIC_NAME_SIZE_MAX: Final = 127  # the length is one signed byte in a version-1 record
GROUP_NAME_SIZE_MAX: Final = 255
USER_GROUP_NAME_SIZE_MAX: Final = 120  # RocketMQ's limit for users; its own names may be longer

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
SYSTEM_GROUPS: Final = frozenset(
    {
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
        "CID_SYS_RMQ_TRANS",
        "CLIENT_INNER_PRODUCER",
        "DEFAULT_CONSUMER",
        "DEFAULT_PRODUCER",
        "FILTERSRV_CONSUMER",
        "SCHEDULE_CONSUMER",
        "SELF_TEST_C_GROUP",
        "SELF_TEST_P_GROUP",
        "TOOLS_CONSUMER",
        "__MONITOR_CONSUMER",
    }
)

_ILLEGAL: Final = re.compile(r"[^%|a-zA-Z0-9_-]")
NAMES_KNOWN: Final = 16_384  # of topics, that were checked and are legal: 4 MB at most
_PRINTED_SIZE_MAX: Final = 160  # an error message never repeats a whole hostile name


@lru_cache(maxsize=NAMES_KNOWN)
def check_topic_name(name: str) -> None:
    """Raises TroveError TOPIC_ILLEGAL unless a user may create, and send to, a topic of this name."""
    fault = _fault(name, TOPIC_NAME_SIZE_MAX)
    if fault is None and is_system_topic(name):
        fault = "is reserved for the broker itself"
    if fault is not None:
        raise TroveError(errors.TOPIC_ILLEGAL, f"topic {_printed(name)} {fault}", topic=_printed(name))


def check_group_name(name: str) -> None:
    """Raises TroveError GROUP_ILLEGAL unless the name is allowed for a consumer group."""
    fault = _fault(name, GROUP_NAME_SIZE_MAX)
    if fault is not None:
        raise TroveError(errors.GROUP_ILLEGAL, f"group {_printed(name)} {fault}", group=_printed(name))


def is_system_group(name: str) -> bool:
    """Whether the name is reserved: RocketMQ's fixed names, and CID_RMQ_SYS_…."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def is_brokers_own(topic: str) -> bool:
    """Whether it is a system topic that no consumer reads: all but those of retries and dead letters."""
    return is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def retry_topics(group: str, topic: str) -> tuple[str, str, str]:
    """The topics of messages that are redelivered to the group: its classic retry topic (one for all topics),
    and RocketMQ's two forms of a pop retry topic."""
    return f"{RETRY_PREFIX}{group}", f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"


def groups_of_retry_topic(topic: str) -> set[str]:
    """The groups whose retry topic it may be: retry_topics() gives it for more than one."""
    name = topic.removeprefix(RETRY_PREFIX)
    return {name, *(name[:at] for at, character in enumerate(name) if character in "_+")}


def check_user_group_name(name: str) -> None:
    """Raises TroveError GROUP_ILLEGAL unless a user may create, and consume as, a group of this name."""
    fault = _fault(name, USER_GROUP_NAME_SIZE_MAX)
    if fault is None and is_system_group(name):
        fault = "is reserved for the broker itself"
    if fault is not None:
        raise TroveError(errors.GROUP_ILLEGAL, f"group {_printed(name)} {fault}", group=_printed(name))


def _fault(name: str, size_max: int) -> str | None:
    if not name:
        return "is empty"
    if len(name) > size_max:
        return f"has {len(name)} characters, more than {size_max}"
    if (illegal := _ILLEGAL.search(name)) is not None:
        return (
            f"has the character {illegal[0]!a}. Permitted are a to z, A to Z, 0 to 9, %, |, - and _:"
            f" RocketMQ's clients and brokers refuse all others. For example: {_ILLEGAL.sub('-', name)}"
        )
    return None


def _printed(name: str) -> str:
    return ascii(name if len(name) <= _PRINTED_SIZE_MAX else name[:_PRINTED_SIZE_MAX] + "…")
