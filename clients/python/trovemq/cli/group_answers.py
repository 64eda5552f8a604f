"""Shows consumer groups: JSON objects, tables, and durations in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trovemq.cli.columns import MERGED, Column, Columns
from trovemq.cli.session import Session
from trovemq_proto.time_text import format_time

if TYPE_CHECKING:
    from trovemq import GroupDescription, GroupMember, GroupReset, GroupSettings

BACKOFF_STEPS_MAX: Final = 64
BACKOFF_STEPS_SHOWN: Final = 4  # in a table


def show_resets(
    session: Session, group: str, topic: str, changes: Iterable[GroupReset], *, preview: bool
) -> None:
    """The changes of a reset, made or previewed, queue by queue."""
    session.show_list(changes, _reset_columns(group, topic, preview=preview))
    if preview:
        session.output.remark("nothing was changed")


def _reset_columns(group: str, topic: str, *, preview: bool) -> Columns[GroupReset]:
    return Columns(
        Column("group", None, lambda _: group),
        Column("topic", None, lambda _: topic),
        Column("queueId", "queue", lambda change: change.queue_id, number=True),
        Column("offsetBefore", "before", lambda change: change.offset_before, number=True),
        Column("offset", "would be" if preview else "now", lambda change: change.offset, number=True),
        Column("inFlight", "in flight, forgotten", lambda change: change.in_flight, number=True),
        Column("broker", "broker", lambda change: change.broker, place=0),
        Column("preview", None, lambda _: preview),
    )


def show_groups(session: Session, groups: Iterable[GroupDescription]) -> None:
    """One object, or one line of a table, for each group and broker."""
    session.show_list(sorted(groups, key=lambda group: (group.group, group.broker)), GROUPS)


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


GROUPS: Final[Columns[GroupDescription]] = Columns(
    Column("group", "group", lambda group: group.group),
    Column(MERGED, None, lambda group: settings_fields(group.settings)),
    Column(None, "order", lambda group: "by message group" if group.settings.orderly else "any"),
    Column(None, "redeliveries", lambda group: group.settings.retry_max, number=True),
    Column(None, "back-off", lambda group: backoff_text(group.settings, steps_max=BACKOFF_STEPS_SHOWN)),
    Column("members", "members", lambda group: group.member_count, number=True),
    Column("topics", "topics", lambda group: group.topics, lambda group: len(group.topics), number=True),
    Column("created", None, lambda group: group.created),
    Column("unorderedTopics", None, lambda group: group.unordered_topics),
    Column("broker", "broker", lambda group: group.broker),
)
MEMBERS_OF_GROUP: Final[Columns[GroupMember]] = Columns(
    Column("clientId", "client id", lambda member: member.client_id, escaped=True),
    Column("clientType", "kind", lambda member: member.client_type),
    Column("language", "language", lambda member: member.language, escaped=True),
    Column("version", "version", lambda member: member.version, escaped=True),
    Column("address", "address", lambda member: member.address, escaped=True),
    Column(
        "lastHeartbeat",
        "heard of",
        lambda member: member.last_heartbeat,
        lambda member: format_time(member.last_heartbeat),
    ),
    Column("inFlight", "in flight", lambda member: member.in_flight, number=True),
    Column(
        "subscriptions",
        "subscriptions",
        lambda member: dict(member.subscriptions),
        lambda member: ", ".join(f"{topic}: {text}" for topic, text in member.subscriptions.items()),
        escaped=True,
    ),
    Column("broker", None, lambda member: member.broker),
)
