"""What a topic or a group keeps of the cluster's configuration: attributes of its entry in topics.json or
subscriptionGroup.json, which RocketMQ keeps.

| attribute             | value                                                                            |
|-----------------------|----------------------------------------------------------------------------------|
| trovemq.config.id     | `1.0123456789abcdef.7`: generation, its mark, version; the id of the cluster's   |
|                       | entry that the topic or group was made for. None: the cluster did not make it    |
| trovemq.config.state  | `unplaced:6`: the topic takes no new messages here, because the cluster has      |
|                       | placed none of its queues on this broker. `withheld:6`: it is kept and not       |
|                       | served, because the cluster does not have it. The number is the perm that it     |
|                       | gets back; of a group whether it may consume (0 or 1)                            |
| trovemq.config.placed | `12`: version of the configuration when a topic that the cluster had already     |
|                       | came to this broker. Groups older than that, or without an id, read its queues   |
|                       | from their beginning                                                             |

An attribute that cannot be read counts as none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

ID_ATTRIBUTE: Final = "trovemq.config.id"
STATE_ATTRIBUTE: Final = "trovemq.config.state"
PLACED_ATTRIBUTE: Final = "trovemq.config.placed"
UNPLACED: Final = "unplaced"
WITHHELD: Final = "withheld"

_ID: Final = re.compile(r"([0-9]{1,18})\.([0-9a-f]{16})\.([0-9]{1,18})", re.ASCII)
_VERSION: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_STATE: Final = re.compile(r"(unplaced|withheld):([0-9]{1,2})", re.ASCII)

_REASONS: Final = {
    UNPLACED: ": the cluster has placed none of its queues on this broker",
    WITHHELD: ": the cluster's configuration does not have it (trovemq cluster)",
}


class ConfigId(NamedTuple):
    """Generation number, mark and version of the cluster's entry."""

    number: int
    mark: str
    version: int

    def __str__(self) -> str:
        return f"{self.number}.{self.mark}.{self.version}"


class Unserved(NamedTuple):
    """Why an entry is not served as usual, and its value when it is again."""

    reason: str
    value: int


def config_id(attributes: Mapping[str, str]) -> ConfigId | None:
    found = _ID.fullmatch(attributes.get(ID_ATTRIBUTE, ""))
    return None if found is None else ConfigId(int(found[1]), found[2], int(found[3]))


def unserved(attributes: Mapping[str, str]) -> Unserved | None:
    """None if it is served as usual."""
    found = _STATE.fullmatch(attributes.get(STATE_ATTRIBUTE, ""))
    return None if found is None else Unserved(found[1], int(found[2]))


def placed_version(attributes: Mapping[str, str]) -> int | None:
    """None for a topic that was here from its beginning."""
    text = attributes.get(PLACED_ATTRIBUTE, "")
    return int(text) if _VERSION.fullmatch(text) else None


def came_after(topic: Mapping[str, str], group: Mapping[str, str]) -> bool:
    """Whether the topic came to this broker when the group may have been reading it on another one.
    Arguments: attributes of both."""
    placed, made = placed_version(topic), config_id(group)
    return placed is not None and (made is None or made.version < placed)


def is_withheld(attributes: Mapping[str, str]) -> bool:
    state = unserved(attributes)
    return state is not None and state.reason == WITHHELD


def marked(
    attributes: Mapping[str, str],
    id_: ConfigId | None,
    state: Unserved | None = None,
    placed: int | None = None,
) -> dict[str, str]:
    """The attributes with these marks instead of those that they have; `placed` None: it stays."""
    after = {name: text for name, text in attributes.items() if name not in (ID_ATTRIBUTE, STATE_ATTRIBUTE)}
    if id_ is not None:
        after[ID_ATTRIBUTE] = str(id_)
    if state is not None:
        after[STATE_ATTRIBUTE] = f"{state.reason}:{state.value}"
    if placed is not None:
        after[PLACED_ATTRIBUTE] = str(placed)
    return after


def reason_text(attributes: Mapping[str, str]) -> str:
    """The end of an error's message for an entry that is not served; empty for one that is."""
    state = unserved(attributes)
    return "" if state is None else _REASONS[state.reason]
