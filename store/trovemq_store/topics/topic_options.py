"""Options of a topic that RocketMQ does not have, kept among the attributes of `config/topics.json`.

| option               | values                            | attribute                      |
|----------------------|-----------------------------------|--------------------------------|
| deduplicate          | a time (`1h`); `off`              | trovemq.deduplicate            |
| order                | `log`, `priority`                 | trovemq.order                  |
| retention            | `time`, `until_acknowledged`      | trovemq.retention              |
| retention_age_max    | a time (`30d`); `off`             | trovemq.retention.age.max      |
| indexed_properties   | names with commas between; `off`  | trovemq.indexed.properties     |
| writes               | `open`, `closed`                  | trovemq.writes                 |
| acknowledge          | `group`, `leader`, `replicated`   | trovemq.acknowledge            |

RocketMQ keeps attributes that it does not know. A default value is not written; an attribute that cannot be
read (of a newer version, or written by hand) counts as the default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ORDERS: Final = ("log", "priority")
RETENTIONS: Final = ("time", "until_acknowledged")
WRITES: Final = ("open", "closed")
ACKNOWLEDGE: Final = ("group", "leader", "replicated")
WINDOW_MAX_MS: Final = 366 * 86_400_000
WINDOW_MIN_MS: Final = 1_000
INDEXED_PROPERTIES_MAX: Final = 16
OFF: Final = "off"

_ATTRIBUTES: Final = {
    "deduplicate": "trovemq.deduplicate",
    "order": "trovemq.order",
    "retention": "trovemq.retention",
    "retention_age_max": "trovemq.retention.age.max",
    "indexed_properties": "trovemq.indexed.properties",
    "writes": "trovemq.writes",
    "acknowledge": "trovemq.acknowledge",
}
_DEFAULTS: Final = {"order": "log", "retention": "time", "writes": "open", "acknowledge": "group"}
_TIME: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)", re.ASCII)
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Times are in milliseconds; 0 if the option is off."""

    deduplicate_ms: int = 0
    """A message whose unique key was stored so recently in the topic is not stored again."""
    order: str = "log"
    retention: str = "time"
    retention_age_max_ms: int = 0
    """With `until_acknowledged`: older messages are removed all the same. 0: the broker's own limit
    applies."""
    indexed_properties: tuple[str, ...] = ()
    writes: str = "open"
    """`closed`: new messages are refused with TOPIC_CLOSED, so that senders wait."""
    acknowledge: str = "group"
    """In a replica group, who holds a message when it is acknowledged: the leader, every in-sync copy, or as
    the group's setting says."""

    @property
    def by_priority(self) -> bool:
        return self.order == "priority"

    @property
    def closed(self) -> bool:
        return self.writes == "closed"

    @property
    def until_acknowledged(self) -> bool:
        return self.retention == "until_acknowledged"


def options_of(attributes: Mapping[str, str]) -> TopicOptions:
    """The options among a topic's attributes; one that cannot be read has its default."""
    texts = option_texts(attributes)
    while True:
        try:
            return _parsed(texts)
        except TroveError as error:
            del texts[error.fields["option"]]


def with_options(
    attributes: Mapping[str, str], message_type: str, changes: Mapping[str, str]
) -> dict[str, str]:
    """The attributes after these changes of options. TroveError TOPIC_OPTION_ILLEGAL."""
    after = dict(attributes)
    for name, text in changes.items():
        if name not in _ATTRIBUTES:
            raise _illegal(name, f"is unknown; there are {', '.join(_ATTRIBUTES)}")
        value = text.strip()
        if value in (OFF, "", _DEFAULTS.get(name)):
            after.pop(_ATTRIBUTES[name], None)
        else:
            after[_ATTRIBUTES[name]] = value
    check_together(_parsed(option_texts(after)), message_type)
    return after


def option_texts(attributes: Mapping[str, str]) -> dict[str, str]:
    """The options that are set, as they were given."""
    return {name: attributes[attribute] for name, attribute in _ATTRIBUTES.items() if attribute in attributes}


def canonical_texts(options: TopicOptions) -> dict[str, str]:
    """The options that are not the defaults, as texts that with_options() reads; equal for equal options."""
    texts = {
        "deduplicate": _time_text(options.deduplicate_ms),
        "order": options.order,
        "retention": options.retention,
        "retention_age_max": _time_text(options.retention_age_max_ms),
        "indexed_properties": ",".join(options.indexed_properties),
        "writes": options.writes,
        "acknowledge": options.acknowledge,
    }
    return {name: text for name, text in texts.items() if text not in ("", _DEFAULTS.get(name))}


def _time_text(milliseconds: int) -> str:
    """In the largest unit that leaves no rest; empty for 0."""
    unit = max((u for u, ms in _UNITS_MS.items() if milliseconds % ms == 0), key=_UNITS_MS.__getitem__)
    return f"{milliseconds // _UNITS_MS[unit]}{unit}" if milliseconds else ""


def check_together(options: TopicOptions, message_type: str) -> None:
    """TroveError TOPIC_OPTION_ILLEGAL for options that contradict each other."""
    if options.by_priority and message_type == "FIFO":
        raise _illegal("order", "cannot be priority in a FIFO topic: its order is that of sending")
    if options.retention_age_max_ms and not options.until_acknowledged:
        raise _illegal("retention_age_max", "belongs to retention = until_acknowledged")


def _parsed(texts: Mapping[str, str]) -> TopicOptions:
    return TopicOptions(
        deduplicate_ms=_time(texts, "deduplicate"),
        order=_choice(texts, "order", ORDERS),
        retention=_choice(texts, "retention", RETENTIONS),
        retention_age_max_ms=_time(texts, "retention_age_max"),
        indexed_properties=_names(texts, "indexed_properties"),
        writes=_choice(texts, "writes", WRITES),
        acknowledge=_choice(texts, "acknowledge", ACKNOWLEDGE),
    )


def _time(texts: Mapping[str, str], name: str) -> int:
    text = texts.get(name)
    if text is None:
        return 0
    match = _TIME.fullmatch(text)
    milliseconds = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not WINDOW_MIN_MS <= milliseconds <= WINDOW_MAX_MS:
        raise _illegal(name, f"{text[:40]!r} is not a time from 1s to 366d, such as 30m, 1h or 7d (or off)")
    return milliseconds


def _choice(texts: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = texts.get(name, choices[0])
    if text not in choices:
        raise _illegal(name, f"{text[:40]!r} is not one of {', '.join(choices)}")
    return text


def _names(texts: Mapping[str, str], name: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in texts.get(name, "").split(",") if part.strip())
    if len(names) > INDEXED_PROPERTIES_MAX or len(set(names)) < len(names):
        raise _illegal(name, f"has one name twice, or more than {INDEXED_PROPERTIES_MAX} names")
    for each in names:
        if len(each.encode()) > 127 or any(c < " " for c in each):
            raise _illegal(name, f"{each[:40]!r} is not a property name of at most 127 bytes")
    return names


def _illegal(name: str, what: str) -> TroveError:
    return TroveError(errors.TOPIC_OPTION_ILLEGAL, f"option {name[:40]!r} {what}", option=name)
