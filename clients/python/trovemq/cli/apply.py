"""apply FILE: creates or alters the topics, groups and users that a file names, and nothing else.

The whole file is checked, and compared with every broker, before anything is changed. Nothing is deleted, and
no queue is removed. For values that the file does not name, an existing group gets the defaults, and an
existing topic or user keeps its own.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.apply_file import Wanted, WantedGroup, WantedTopic, parse_file, read_file
from trovemq.cli.apply_steps import Step
from trovemq.cli.apply_users import SecretFiles, user_steps
from trovemq.cli.arguments import EveryBrokerOption
from trovemq.cli.figures import counted
from trovemq.cli.file_checks import illegal
from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.system_topics import is_system_topic

if TYPE_CHECKING:
    from trovemq import Client, GroupDescription, GroupSettings, TopicDescription

QUEUE_COUNT_DEFAULT: Final = 8
OPTION_DEFAULTS: Final = {"order": "log", "retention": "time"}
TOPIC_NAME_LENGTH_MAX: Final = 127
GROUP_NAME_LENGTH_MAX: Final = 120
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_OFF: Final = "off"


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "apply")(apply)


async def apply(
    session: Session,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML or JSON; - is standard input.", show_default=False)
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    secrets: Annotated[
        Path | None,
        typer.Option(
            "--secrets",
            metavar="DIR",
            help="Directory of new users' secrets: USER.credentials is read, or created with a new secret.",
            show_default=False,
        ),
    ] = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Create or alter topics, groups and users as a file says. Prints the changes, and deletes nothing."""
    wanted = parse_file(read_file(file))
    async with session.client() as client:
        steps = await planned(session, client, wanted, broker, None if dry_run else SecretFiles(secrets))
        if not dry_run:
            await _carry_out(session, steps)
    show_steps(session, steps, dry_run=dry_run)


async def _carry_out(session: Session, steps: Sequence[Step]) -> None:
    """Carries out the changes in the file's order. Changes before a failure stay, and are printed."""
    done: list[Step] = []
    for step in steps:
        if step.run is None:
            continue
        session.progress.at(len(done), sum(one.run is not None for one in steps), "changing")
        try:
            await session.call(step.run())
        except TroveError as error:
            if done:
                names = [f"{one.kind} {one.name} {one.change}" for one in done]
                session.output.note(done=names)
            text = (
                f"{step.kind} {step.name} on {step.broker}: {error.message} ({len(done)} changes were made)"
            )
            raise TroveError(error.spec, text, **error.fields) from error
        done.append(step)


# --- the difference -----------------------------------------------------------------------------------
async def planned(
    session: Session, client: Client, wanted: Wanted, broker: str | None, secrets: SecretFiles | None
) -> list[Step]:
    """The changes on each broker, in the file's order; on one of those that share a configuration. `secrets`:
    None in a dry run."""
    from trovemq._net.configurations import units_of

    state = await session.call(client.admin.cluster())
    names = [route.broker.name for route in state.brokers if broker in (None, route.broker.name)]
    if not names:
        raise TroveError(
            errors.BROKER_NOT_FOUND, f"broker {broker} is not in the routes", broker=broker or ""
        )
    topics = await session.call(client.admin.list_topics(include_system=True, broker=broker))
    groups = await session.call(client.admin.groups.list_all(broker=broker))
    if away := set(names) & {*topics.missing, *groups.missing}:
        text = (
            f"no answer from {', '.join(sorted(away))}: name a broker with --broker, or wait until it is back"
        )
        raise TroveError(errors.BROKER_UNREACHABLE, text)
    check_new_names(wanted, {topic.topic for topic in topics}, {group.group for group in groups})
    found = units_of(route.broker for route in state.brokers if route.broker.name in names)
    shared = {unit[0].name for unit in found if unit[0].config is not None}
    units = [[info.name for info in unit] for unit in found]
    first = {name: unit[0] for unit in units for name in unit}
    topic_at = {(topic.topic, first.get(topic.broker)): topic for topic in topics}
    group_at = {(group.group, group.broker): group for group in groups if group.created}
    steps = [
        _topic_step(client, topic, unit, topic_at.get((topic.name, unit[0])), shared=unit[0] in shared)
        for topic in wanted.topics
        for unit in units
    ]
    steps += [
        _group_step(client, group, unit[0], group_at.get((group.name, unit[0])))
        for group in wanted.groups
        for unit in units
    ]
    names = [unit[0] for unit in units]
    return steps + (await user_steps(session, client, wanted.users, names, secrets) if wanted.users else [])


def check_new_names(wanted: Wanted, topics: Container[str], groups: Container[str]) -> None:
    """Raises TroveError REQUEST_ILLEGAL before anything is changed. Names that exist are legal."""
    names = [("topic", one.name, TOPIC_NAME_LENGTH_MAX) for one in wanted.topics if one.name not in topics]
    names += [("group", one.name, GROUP_NAME_LENGTH_MAX) for one in wanted.groups if one.name not in groups]
    for noun, name, length_max in names:
        if len(name) > length_max or not _NAME.fullmatch(name):
            text = f"1 to {length_max} letters (a to z, A to Z), digits, %, |, - and _"
            raise illegal(f"{noun} {name[:160]!a}: a name has {text}; RocketMQ's clients refuse all others")
        if noun == "topic" and is_system_topic(name):
            raise illegal(f"topic {name} is reserved for the broker itself")


def _topic_step(
    client: Client,
    wanted: WantedTopic,
    unit: Sequence[str],
    found: TopicDescription | None,
    *,
    shared: bool,
) -> Step:
    admin, broker = client.admin, unit[0]
    if found is None:
        queues, message_type = wanted.queue_count or QUEUE_COUNT_DEFAULT, wanted.message_type or "NORMAL"
        options = dict(wanted.options)
        details = (f"queues {queues}", f"type {message_type}", *_option_texts(options))
        return Step(
            "topic",
            wanted.name,
            broker,
            "created",
            details,
            lambda: admin.create_topic(
                wanted.name, queue_count=queues, message_type=message_type, options=options, brokers=unit
            ),
        )
    if shared and not found.placement:
        details = ("adopted into the cluster's configuration as it is: apply again",)
        return Step(
            "topic", wanted.name, broker, "altered", details, lambda: admin.adopt_topics([wanted.name])
        )
    new_type = wanted.message_type if wanted.message_type not in (None, found.message_type) else None
    more = wanted.queue_count if wanted.queue_count and wanted.queue_count > found.queue_count else None
    changes = [f"type {found.message_type} -> {new_type}"] if new_type else []
    changes += [f"queues {found.queue_count} -> {more}"] if more else []
    if wanted.queue_count and wanted.queue_count < found.queue_count:
        changes.append(f"keeps its {counted(found.queue_count, 'queue')} (the file has {wanted.queue_count})")
    new_options = {
        name: text
        for name, text in wanted.options.items()
        if found.options.get(name, _OFF) != _option(name, text)
    }
    changes += _option_texts(new_options)
    if not new_type and not more and not new_options:
        return Step("topic", wanted.name, broker, "unchanged", tuple(changes))
    return Step(
        "topic",
        wanted.name,
        broker,
        "altered",
        tuple(changes),
        lambda: admin.alter_topic(
            wanted.name, queue_count=more, message_type=new_type, options=new_options, broker=broker
        ),
    )


def _option(name: str, text: str) -> str:
    """The option's text, or that of its default."""
    return _OFF if text.strip() in ("", _OFF, OPTION_DEFAULTS.get(name)) else text.strip()


def _option_texts(options: Mapping[str, str]) -> list[str]:
    return [f"{name} {text}" for name, text in options.items()]


def _group_step(client: Client, wanted: WantedGroup, broker: str, found: GroupDescription | None) -> Step:
    from trovemq.cli.group_answers import BACKOFF_STEPS_SHOWN, backoff_text

    groups = client.admin.groups
    settings = _settings(wanted)
    if found is None:
        details = (
            _order(settings),
            f"maxRetries {settings.retry_max}",
            backoff_text(settings, BACKOFF_STEPS_SHOWN),
        )
        return Step(
            "group",
            wanted.name,
            broker,
            "created",
            details,
            lambda: groups.create(wanted.name, settings, broker=broker),
        )
    changes = _group_changes(found.settings, settings)
    if not changes:
        return Step("group", wanted.name, broker, "unchanged")
    return Step(
        "group",
        wanted.name,
        broker,
        "altered",
        changes,
        lambda: groups.alter(wanted.name, settings, broker=broker),
    )


def _settings(wanted: WantedGroup) -> GroupSettings:
    from trovemq import GroupSettings
    from trovemq.models.group import BACKOFF_MS_DEFAULT

    if wanted.exponential is None:
        return GroupSettings(wanted.orderly, wanted.retry_max, wanted.backoff_ms or BACKOFF_MS_DEFAULT)
    first, last, factor = wanted.exponential
    return GroupSettings(
        wanted.orderly,
        wanted.retry_max,
        (),
        exponential=True,
        backoff_initial_ms=first,
        backoff_max_ms=last,
        backoff_multiplier=factor,
    )


def _order(settings: GroupSettings) -> str:
    return "orderly" if settings.orderly else "unordered"


def _group_changes(before: GroupSettings, after: GroupSettings) -> tuple[str, ...]:
    from trovemq.cli.group_answers import backoff_text

    changes = []
    if before.orderly != after.orderly:
        changes.append(f"{_order(before)} -> {_order(after)}")
    if before.retry_max != after.retry_max:
        changes.append(f"maxRetries {before.retry_max} -> {after.retry_max}")
    if backoff_text(before) != backoff_text(after):
        changes.append(f"back-off {backoff_text(before)} -> {backoff_text(after)}")
    return tuple(changes)


def show_steps(session: Session, steps: Sequence[Step], *, dry_run: bool) -> None:
    """The changes that were made, or would be."""
    for step in steps:
        session.output.item(step.fields(dry_run=dry_run))
    counts = {
        change: sum(step.change == change for step in steps) for change in ("created", "altered", "unchanged")
    }
    if session.output.objects:
        return
    from trovemq.cli.render import printable, table

    rows = [
        (step.kind, printable(step.name), step.broker, step.change, printable(", ".join(step.details)))
        for step in steps
    ]
    session.output.show(table(("kind", "name", "broker", "change", "what"), rows))
    text = ", ".join(f"{count} {change}" for change, count in counts.items())
    session.output.remark(f"nothing was changed; it would be: {text}" if dry_run else text)
