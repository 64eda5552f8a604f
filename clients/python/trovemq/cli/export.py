"""export: topics, groups and users as a file for apply. It has no secrets, because brokers never return
them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.apply_users import as_rule
from trovemq.cli.apply_users_file import WantedRule
from trovemq.cli.arguments import EveryBrokerOption
from trovemq.cli.completion import complete_group, complete_topic
from trovemq.cli.group_answers import settings_fields
from trovemq.cli.options import Format
from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import AccessRule, Client, GroupDescription, TopicDescription, UserDescription

_ABSENT: Final = {
    "topic": errors.TOPIC_NOT_FOUND,
    "group": errors.GROUP_NOT_FOUND,
    "user": errors.USER_NOT_FOUND,
}


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "export")(export)


async def export(
    session: Session,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="Only this one (repeatable).",
            show_default=False,
            autocompletion=complete_topic,
        ),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="Only this one (repeatable).",
            show_default=False,
            autocompletion=complete_group,
        ),
    ] = None,
    users: Annotated[
        list[str] | None,
        typer.Option("--user", metavar="USER", help="Only this one (repeatable).", show_default=False),
    ] = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Write topics, groups and users as a file for apply. Without secrets: YAML, or JSON with --json."""
    everything = not topics and not groups and not users
    async with session.client() as client:
        found_topics = await session.call(client.admin.list_topics(broker=broker))
        found_groups = await session.call(client.admin.groups.list_all(broker=broker))
        shows_users = bool(everything or users)
        found_users = await _users(session, client, broker, optional=not users) if shows_users else None
    _check_complete(session)
    document = {
        "topics": _entries("topic", topic_entries(found_topics), topics, everything),
        "groups": _entries("group", group_entries(found_groups), groups, everything),
    }
    if found_users is not None:
        document["users"] = _entries("user", found_users, users, everything)
    if session.output.format is Format.JSON:
        session.output.item(document)
    else:
        import yaml

        session.output.text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


async def _users(
    session: Session, client: Client, broker: str | None, *, optional: bool
) -> dict[str, dict[str, object]] | None:
    """The users by name. None if they are optional and either the brokers have no authentication or the
    caller may not list users."""
    try:
        users = await session.call(client.admin.users.list_all(broker=broker))
        rules = await session.call(client.admin.rules.list_all(broker=broker))
    except TroveError as error:
        if not optional or error.spec not in (errors.ACCESS_DENIED, errors.AUTHENTICATION_DISABLED):
            raise
        if error.spec is errors.ACCESS_DENIED:
            session.output.note(leftOut=["users"])
            session.output.remark("users are left out, because this user may not list them")
        return None
    return user_entries(users, rules)


def _check_complete(session: Session) -> None:
    """Raises TroveError BROKER_UNREACHABLE if a broker did not answer: a file looks the same without it."""
    if missing := session.away.names("missing"):
        text = (
            f"the file would not be complete, no answer from {', '.join(missing)}: name a broker with"
            " --broker, or wait until it is back; a lost one that does not come back:"
            " trovemq broker remove NAME --accept-loss"
        )
        raise TroveError(errors.BROKER_UNREACHABLE, text, brokers=", ".join(missing))


def _entries(
    kind: str, found: dict[str, dict[str, object]], wanted: list[str] | None, everything: bool
) -> list[dict[str, object]]:
    """The wanted ones. Raises TroveError TOPIC_NOT_FOUND, GROUP_NOT_FOUND, USER_NOT_FOUND."""
    if everything:
        return list(found.values())
    for name in wanted or ():
        if name not in found:
            raise TroveError(_ABSENT[kind], f"no broker has the {kind} {name}", **{kind: name})
    return [found[name] for name in dict.fromkeys(wanted or ())]


def topic_entries(topics: Iterable[TopicDescription]) -> dict[str, dict[str, object]]:
    """The entries by name. Topics that differ between brokers are an error, because apply would make them
    alike."""
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
    """The groups that were created with settings, by name."""
    found: dict[str, dict[str, object]] = {}
    for group in sorted(groups, key=lambda one: (one.group, one.broker)):
        if not group.created:
            continue
        entry: dict[str, object] = {"name": group.group, **settings_fields(group.settings)}
        _add(found, "group", entry, group.broker)
    return found


def user_entries(
    users: Iterable[UserDescription], rules: Iterable[AccessRule]
) -> dict[str, dict[str, object]]:
    """The users by name, each with its rules."""
    rules_of: dict[tuple[str, str], list[WantedRule]] = {}
    for rule in rules:
        rules_of.setdefault((rule.access_key, rule.broker), []).append(as_rule(rule))
    found: dict[str, dict[str, object]] = {}
    for user in sorted(users, key=lambda one: (one.access_key, one.broker)):
        own = sorted(
            rules_of.get((user.access_key, user.broker), []),
            key=lambda rule: (rule.allow, rule.resource, rule.actions, rule.sources),
        )
        entry: dict[str, object] = {
            "name": user.access_key,
            "super": user.kind == "Super",
            "enabled": user.enabled,
            "rules": [_rule_entry(rule) for rule in own],
        }
        _add(found, "user", entry, user.broker)
    return found


def _rule_entry(rule: WantedRule) -> dict[str, object]:
    entry: dict[str, object] = {"allow" if rule.allow else "deny": rule.actions, "resource": rule.resource}
    return entry | ({"from": list(rule.sources)} if rule.sources else {})


def _add(found: dict[str, dict[str, object]], kind: str, entry: dict[str, object], broker: str) -> None:
    name = str(entry["name"])
    if found.setdefault(name, entry) != entry:
        text = f"{kind} {name} on {broker} differs from that of another broker: choose one with --broker"
        raise TroveError(errors.BROKER_AMBIGUOUS, text, **{kind: name})
