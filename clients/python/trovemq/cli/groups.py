"""group create|alter|delete|list|describe|members|lag|reset, and group offset commit|get|reset."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli import group_offsets
from trovemq.cli.arguments import (
    EarliestOption,
    EveryBrokerOption,
    ExistOkOption,
    GroupArgument,
    LatestOption,
    QueueOption,
    TopicArgument,
    YesOption,
    parse_offset,
)
from trovemq.cli.group_answers import (
    GROUPS,
    MEMBERS_OF_GROUP,
    backoff_text,
    show_groups,
    show_resets,
)
from trovemq.cli.group_lag import lag
from trovemq.cli.session import Session, verb
from trovemq.cli.times import Moment, parse_duration_ms, parse_moment
from trovemq.cli.watching import EVERY_MS_DEFAULT, EveryOption, WatchOption, watched

if TYPE_CHECKING:
    from trovemq import GroupDescription, GroupSettings

app = typer.Typer(
    help="Consumer groups: create, list, lag, reset and more.",
    no_args_is_help=True,
)
app.add_typer(group_offsets.app, name="offset")

RETRY_MAX_MAX: Final = 10_000

OrderlyOption = Annotated[
    bool | None,
    typer.Option(
        "--orderly/--unordered", help="Deliver in the order of each message group.", show_default=False
    ),
]
RetryMaxOption = Annotated[
    int | None,
    typer.Option(
        "--retry-max",
        metavar="N",
        min=0,
        max=RETRY_MAX_MAX,
        help="Redeliveries before a message becomes a dead letter (new groups: 16).",
        show_default=False,
    ),
]
BackoffOption = Annotated[
    list[int] | None,
    typer.Option(
        "--backoff",
        parser=parse_duration_ms,
        metavar="T",
        help="Delay before each redelivery (500ms, 10s, 5m, 1h; repeatable, the last one for all further).",
        show_default=False,
    ),
]
ExponentialOption = Annotated[
    str | None,
    typer.Option(
        "--exponential",
        metavar="FROM,TO,BY",
        help="Instead of --backoff: delays from FROM up to TO, times BY each time (1s,2h,2).",
        show_default=False,
    ),
]


def settings_over(
    before: GroupSettings,
    orderly: bool | None,
    retry_max: int | None,
    backoff: list[int] | None,
    exponential: str | None,
) -> GroupSettings:
    """The settings with the given options. Raises typer.BadParameter (usage)."""
    if backoff and exponential:
        raise typer.BadParameter("give --backoff or --exponential, not both")
    after = before
    if orderly is not None:
        after = replace(after, orderly=orderly)
    if retry_max is not None:
        after = replace(after, retry_max=retry_max)
    if backoff:
        after = replace(_without_backoff(after), backoff_ms=tuple(backoff))
    if exponential:
        initial_ms, max_ms, multiplier = _exponential(exponential)
        after = replace(
            _without_backoff(after),
            exponential=True,
            backoff_initial_ms=initial_ms,
            backoff_max_ms=max_ms,
            backoff_multiplier=multiplier,
        )
    return after


def _without_backoff(settings: GroupSettings) -> GroupSettings:
    return replace(
        settings,
        backoff_ms=(),
        exponential=False,
        backoff_initial_ms=0,
        backoff_max_ms=0,
        backoff_multiplier=0.0,
    )


def _exponential(text: str) -> tuple[int, int, float]:
    parts = text.split(",")
    try:
        first, last, factor = parts
        return parse_duration_ms(first), parse_duration_ms(last), float(factor)
    except ValueError:
        raise typer.BadParameter(f"--exponential {text!r} is not FROM,TO,BY (for example 1s,2h,2)") from None


@verb(app, "create")
async def create(
    session: Session,
    group: GroupArgument,
    orderly: OrderlyOption = None,
    retry_max: RetryMaxOption = None,
    backoff: BackoffOption = None,
    exponential: ExponentialOption = None,
    exist_ok: ExistOkOption = False,
    broker: EveryBrokerOption = None,
) -> None:
    """Create a group. Through a nameserver on every broker, unless --broker names one."""
    from trovemq import GroupSettings

    settings = settings_over(GroupSettings(), orderly, retry_max, backoff, exponential)
    async with session.client() as client:
        made = await session.call(
            client.admin.groups.create(group, settings, broker=broker, exist_ok=exist_ok)
        )
    if not exist_ok:
        session.tell_existing(made.existing)
    show_groups(session, made)


@verb(app, "alter")
async def alter(
    session: Session,
    group: GroupArgument,
    orderly: OrderlyOption = None,
    retry_max: RetryMaxOption = None,
    backoff: BackoffOption = None,
    exponential: ExponentialOption = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Change a group's settings; settings that are not given stay."""
    if orderly is None and retry_max is None and not backoff and not exponential:
        raise typer.BadParameter(
            "nothing to alter: give --orderly, --unordered, --retry-max, --backoff or --exponential"
        )
    altered: list[GroupDescription] = []
    async with session.client() as client:
        groups = client.admin.groups
        state = await session.call(client.admin.cluster())
        configs = {one.broker.name: one.broker.config for one in state.brokers}
        changed = set()
        for found in await session.call(groups.describe(group, broker=broker)):
            settings = settings_over(found.settings, orderly, retry_max, backoff, exponential)
            config = configs.get(found.broker)
            if config is not None and config.id in changed:
                continue  # it was changed with another broker of its configuration
            changed.add(config.id if config is not None else "")
            altered += await session.call(groups.alter(group, settings, broker=found.broker))
    show_groups(session, altered)


@verb(app, "list")
async def list_(
    session: Session,
    watch: WatchOption = False,
    every_ms: EveryOption = EVERY_MS_DEFAULT,
    broker: EveryBrokerOption = None,
) -> None:
    """List the groups of every broker."""
    async with session.client() as client:

        async def show() -> None:
            show_groups(session, await session.call(client.admin.groups.list_all(broker=broker)))

        await watched(session, show, every_ms if watch else None)
        session.note_unseen(broker)


@verb(app, "describe")
async def describe(session: Session, group: GroupArgument, broker: EveryBrokerOption = None) -> None:
    """Show a group's settings and its topics. On every broker that knows it."""
    async with session.client() as client:
        found = await session.call(client.admin.groups.describe(group, broker=broker))
    session.note_unseen(broker)
    for description in found:
        session.output.item(GROUPS.fields(description))
    if session.output.objects:
        return
    from trovemq.cli.render import card

    for description in found:
        session.output.show(
            card(
                {
                    "group": description.group,
                    "order": "by message group" if description.settings.orderly else "any",
                    "redeliveries": description.settings.retry_max,
                    "back-off": backoff_text(description.settings),
                    "members": description.member_count,
                    "topics": " ".join(description.topics) or None,
                    "settings": "its own" if description.created else "the defaults",
                    "broker": description.broker,
                }
            )
        )
        if description.unordered_topics:
            session.output.remark(
                f"the order of {' '.join(description.unordered_topics)} (FIFO) is not kept by this group:"
                f" trovemq group alter {description.group} --orderly"
            )


@verb(app, "delete")
async def delete(
    session: Session,
    group: GroupArgument,
    yes: YesOption = False,
    broker: EveryBrokerOption = None,
) -> None:
    """Delete a group with its offsets. Its messages in flight, too; its dead letters stay."""
    session.confirm(f"Delete group {group} and its offsets?", yes=yes)
    async with session.client() as client:
        brokers = await session.call(client.admin.groups.delete(group, broker=broker))
    for name in brokers:
        session.output.item({"group": group, "broker": name})
        session.output.remark(f"deleted on {name}")


@verb(app, "members")
async def members(session: Session, group: GroupArgument, broker: EveryBrokerOption = None) -> None:
    """List the consumers of a group that are connected."""
    async with session.client() as client:
        found = await session.call(client.admin.groups.members(group, broker=broker))
    session.note_unseen(broker)
    session.show_list(found, MEMBERS_OF_GROUP)


verb(app, "lag")(lag)


@verb(app, "reset")
async def reset(
    session: Session,
    group: GroupArgument,
    topic: TopicArgument,
    queue: QueueOption = None,
    to_time: Annotated[
        Moment | None,
        typer.Option(
            "--to-time",
            parser=parse_moment,
            metavar="T",
            help="To the first message at or after T: epoch ms, ISO 8601, or 1h, yesterday.",
            show_default=False,
        ),
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="O", parser=parse_offset, show_default=False)
    ] = None,
    to_earliest: EarliestOption = False,
    to_latest: LatestOption = False,
    preview: Annotated[bool, typer.Option("--preview", help="Show the changes without making them.")] = False,
    broker: EveryBrokerOption = None,
) -> None:
    """Set where a group continues in a topic. In every queue (or in one); messages in flight are
    forgotten."""
    if sum((to_time is not None, to_offset is not None, to_earliest, to_latest)) != 1:
        raise typer.BadParameter("give exactly one of --to-time, --to-offset, --to-earliest, --to-latest")
    async with session.client() as client:
        timestamp = None
        if to_time is not None:
            (timestamp,) = await session.times(client, topic, to_time, broker=broker)
        changes = await session.call(
            client.admin.groups.reset(
                group,
                topic,
                queue_id=queue,
                timestamp=timestamp,
                offset=to_offset,
                to_earliest=to_earliest,
                to_latest=to_latest,
                preview=preview,
                broker=broker,
            )
        )
    show_resets(session, group, topic, changes, preview=preview)
