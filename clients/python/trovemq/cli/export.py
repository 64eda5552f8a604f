"""export: topics and groups as a file for apply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from trovemq.cli.arguments import EveryBrokerOption
from trovemq.cli.group_answers import settings_fields
from trovemq.cli.options import Format
from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import GroupDescription, TopicDescription


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "export")(export)


async def export(
    session: Session,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only this one (repeatable).", show_default=False),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="GROUP", help="Only this one (repeatable).", show_default=False),
    ] = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Write topics and groups as a file that apply reads: YAML, or JSON with --json."""
    async with session.client() as client:
        found_topics = await session.call(client.admin.list_topics(broker=broker))
        found_groups = await session.call(client.admin.groups.list_all(broker=broker))
    everything = not topics and not groups
    document = {
        "topics": _entries("topic", topic_entries(found_topics), topics, everything),
        "groups": _entries("group", group_entries(found_groups), groups, everything),
    }
    if session.output.format is Format.JSON:
        session.output.item(document)
    else:
        import yaml

        session.output.text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def _entries(
    kind: str, found: dict[str, dict[str, object]], wanted: list[str] | None, everything: bool
) -> list[dict[str, object]]:
    """Those that are wanted. Raises TroveError TOPIC_NOT_FOUND, GROUP_NOT_FOUND."""
    if everything:
        return list(found.values())
    for name in wanted or ():
        if name not in found:
            spec = errors.TOPIC_NOT_FOUND if kind == "topic" else errors.GROUP_NOT_FOUND
            raise TroveError(spec, f"no broker has settings of a {kind} {name}", **{kind: name})
    return [found[name] for name in dict.fromkeys(wanted or ())]


def topic_entries(topics: Iterable[TopicDescription]) -> dict[str, dict[str, object]]:
    """By name. Brokers that differ are an error: apply makes them alike."""
    found: dict[str, dict[str, object]] = {}
    for topic in sorted(topics, key=lambda one: (one.topic, one.broker)):
        entry: dict[str, object] = {
            "name": topic.topic,
            "type": topic.message_type,
            "queues": topic.queue_count,
        }
        if topic.options:
            entry["options"] = dict(topic.options)
        _add(found, "topic", entry, topic.broker)
    return found


def group_entries(groups: Iterable[GroupDescription]) -> dict[str, dict[str, object]]:
    """Those with settings of their own, by name."""
    found: dict[str, dict[str, object]] = {}
    for group in sorted(groups, key=lambda one: (one.group, one.broker)):
        if not group.created:
            continue
        entry: dict[str, object] = {"name": group.group, **settings_fields(group.settings)}
        _add(found, "group", entry, group.broker)
    return found


def _add(found: dict[str, dict[str, object]], kind: str, entry: dict[str, object], broker: str) -> None:
    name = str(entry["name"])
    if found.setdefault(name, entry) != entry:
        text = f"{kind} {name} on {broker} differs from that of another broker: choose one with --broker"
        raise TroveError(errors.BROKER_AMBIGUOUS, text, **{kind: name})
