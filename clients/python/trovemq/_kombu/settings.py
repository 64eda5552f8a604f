"""The `transport_options` of a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, Self

from trovemq._kombu.qos import RENEW_AFTER_DEFAULT, RENEWED_LEASE_DEFAULT
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

KOMBU_OPTIONS: Final = frozenset(
    {
        "callback",
        "connect_retries_timeout",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
        "on_revive",
        "polling_interval",
        "retry_errors",
    }
)
"""Options that kombu reads, or adds itself: a producer's `retry_policy` becomes part of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `broker_transport_options` may have, beside KOMBU_OPTIONS.

    Attributes:
        group: The consumer group of all workers. Its settings and offsets are per topic.
        topic_prefix: Before the name of each topic.
        control_topic: The topic of replies, remote control and events.
        event_exchange: Celery's setting `event_exchange`, if it was changed.
        create_topics: Whether declaring a queue creates its topic.
        queue_count: Queues of a created topic, on each broker. Priorities count within one queue.
        read_ahead: Messages that a worker receives ahead of its prefetch, in each queue.
        renew_after: Seconds after which the worker renews a lease; less than the broker's
            `renewed_total_max_ms`.
        renewed_lease: Seconds to which it extends the lease.
        get_timeout: Seconds that `basic_get` waits for the broker.
    """

    group: str = "celery"
    topic_prefix: str = ""
    control_topic: str = "celery-control"
    event_exchange: str = "celeryev"
    create_topics: bool = True
    queue_count: int = 1
    read_ahead: int = 1
    renew_after: float = RENEW_AFTER_DEFAULT
    renewed_lease: float = RENEWED_LEASE_DEFAULT
    get_timeout: float = 1.0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The options that are meant for this transport. Raises TroveError REQUEST_ILLEGAL for an option that
        neither it nor kombu reads, and for a value of another type."""
        names = [field.name for field in fields(cls)]
        for name in options:
            if name not in names and name not in KOMBU_OPTIONS:
                raise TroveError(errors.REQUEST_ILLEGAL, _unknown(name, names), argument=name)
        values = {name: options[name] for name in names if name in options}
        for name, value in values.items():
            wanted: Any = type(getattr(cls(), name))
            if not isinstance(value, (int, float) if wanted is float else wanted):
                text = f"the transport option {name}={value!r} is to be of type {wanted.__name__}"
                raise TroveError(errors.REQUEST_ILLEGAL, text, argument=name)
        return cls(**values)


def _unknown(name: str, names: list[str]) -> str:
    near = get_close_matches(name, [*names, *KOMBU_OPTIONS], cutoff=0.75)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names)}, and those of kombu"
    return f"the transport has no option {name!r}: {hint}"
