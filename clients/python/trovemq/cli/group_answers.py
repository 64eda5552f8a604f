"""Shows consumer groups: JSON objects, tables, and durations in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trovemq.cli.session import Session

if TYPE_CHECKING:
    from trovemq import GroupDescription, GroupMember, GroupReset, GroupSettings, QueueLag

BACKOFF_STEPS_MAX: Final = 64
BACKOFF_STEPS_SHOWN: Final = 4  # in a table


def show_resets(
    session: Session, group: str, topic: str, changes: Iterable[GroupReset], *, preview: bool
) -> None:
    """The changes of a reset, made or previewed, queue by queue."""
    found = list(changes)
    for change in found:
        session.output.item(
            {
                "group": group,
                "topic": topic,
                "queueId": change.queue_id,
                "offsetBefore": change.offset_before,
                "offset": change.offset,
                "inFlight": change.in_flight,
                "broker": change.broker,
                "preview": preview,
            }
        )
    if session.output.objects:
        return
    from trovemq.cli.render import table

    now = "would be" if preview else "now"
    numbers = ("queue", "before", now, "in flight, forgotten")
    rows = [(c.broker, c.queue_id, c.offset_before, c.offset, c.in_flight) for c in found]
    session.output.show(table(("broker", *numbers), rows, numbers=numbers))
    if preview:
        session.output.remark("nothing was changed")


def show_groups(session: Session, groups: Iterable[GroupDescription]) -> None:
    """One object, or one line of a table, for each group and broker."""
    found = sorted(groups, key=lambda group: (group.group, group.broker))
    for group in found:
        session.output.item(group_fields(group))
    if session.output.objects:
        return
    from trovemq.cli.render import table

    columns = ("group", "order", "redeliveries", "back-off", "members", "topics", "broker")
    rows = [
        (
            group.group,
            "by message group" if group.settings.orderly else "any",
            group.settings.retry_max,
            backoff_text(group.settings, steps_max=BACKOFF_STEPS_SHOWN),
            group.member_count,
            len(group.topics),
            group.broker,
        )
        for group in found
    ]
    session.output.show(table(columns, rows, numbers=("redeliveries", "members", "topics")))


def settings_fields(settings: GroupSettings) -> dict[str, object]:
    """The JSON members of a group's settings, with those of its kind of back-off."""
    if settings.exponential:
        backoff: dict[str, object] = {
            "backoffInitialMillis": settings.backoff_initial_ms,
            "backoffMaxMillis": settings.backoff_max_ms,
            "backoffMultiplier": settings.backoff_multiplier,
        }
    else:
        backoff = {"backoffMillis": list(settings.backoff_ms)}
    return {"orderly": settings.orderly, "maxRetries": settings.retry_max, **backoff}


def group_fields(group: GroupDescription) -> dict[str, object]:
    """The JSON object of a group on one broker."""
    return {
        "group": group.group,
        **settings_fields(group.settings),
        "members": group.member_count,
        "topics": list(group.topics),
        "created": group.created,
        "unorderedTopics": list(group.unordered_topics),
        "broker": group.broker,
    }


def member_fields(member: GroupMember) -> dict[str, object]:
    """The JSON object of a member."""
    return {
        "clientId": member.client_id,
        "clientType": member.client_type,
        "language": member.language,
        "version": member.version,
        "address": member.address,
        "lastHeartbeat": member.last_heartbeat,
        "inFlight": member.in_flight,
        "subscriptions": dict(member.subscriptions),
        "broker": member.broker,
    }


def lag_fields(queue: QueueLag) -> dict[str, object]:
    """The JSON object of one queue's lag."""
    return {
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "minOffset": queue.min_offset,
        "maxOffset": queue.max_offset,
        "committed": queue.committed,
        "nextOffset": queue.next_offset,
        "inFlight": queue.in_flight,
        "lag": queue.lag,
        "lagMillis": queue.lag_ms,
        "estimated": queue.estimated,
        "broker": queue.broker,
    }


def backoff_text(settings: GroupSettings, steps_max: int = BACKOFF_STEPS_MAX) -> str:
    """The delays in words: `1s 5s 10s`, `1s 5s … 2h` if there are more steps, or `1s x 2 … 2h`."""
    if settings.exponential:
        first, last = duration_text(settings.backoff_initial_ms), duration_text(settings.backoff_max_ms)
        return f"{first} x {settings.backoff_multiplier:g} … {last}"
    steps = [duration_text(ms) for ms in settings.backoff_ms]
    if len(steps) > steps_max:
        steps = [*steps[: steps_max - 1], "…", steps[-1]]
    return " ".join(steps)


def duration_text(milliseconds: int) -> str:
    """`500ms`, `10s`, `5m`, `2h`: the largest unit that is exact."""
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
