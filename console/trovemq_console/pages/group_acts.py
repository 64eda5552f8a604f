"""Acts on consumer groups: make one, change or delete it, set where it continues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import typer

from trovemq import BrokerAnswers, Client, GroupSettings, TroveError, errors
from trovemq.cli.group_answers import backoff_text
from trovemq.cli.groups import settings_over
from trovemq.cli.times import parse_duration_ms
from trovemq_console.pages.act_parts import Act, Outcome, Preview, in_words, not_done_on
from trovemq_console.pages.forms import Form
from trovemq_console.pages.topics import moment_of
from trovemq_console.rendering import link, moment_text, number_text
from trovemq_console.settings import ConsoleSettings

_ORDERS: Final = {"message group": True, "none": False}


# --- the groups themselves --------------------------------------------------------------------------
def _changed(form: Form, before: GroupSettings) -> GroupSettings:
    """The settings with the fields that are filled in. Raises TroveError REQUEST_ILLEGAL."""
    order, retry_max = form.choice("order", ("", *_ORDERS)), form.text("retry_max").strip()
    try:
        return settings_over(
            before,
            _ORDERS[order] if order else None,
            form.number("retry_max") if retry_max else None,
            [parse_duration_ms(step) for step in form.words("backoff")],
            form.text("exponential").strip() or None,
        )
    except typer.BadParameter as error:
        raise TroveError(errors.REQUEST_ILLEGAL, error.message, field="backoff") from None


def _words(form: Form) -> list[str]:
    """The options of the command line that say the same."""
    words = []
    if order := form.text("order"):
        words.append("--orderly" if _ORDERS[order] else "--unordered")
    if retry_max := form.text("retry_max").strip():
        words += ["--retry-max", retry_max]
    for step in form.words("backoff"):
        words += ["--backoff", step]
    if exponential := form.text("exponential").strip():
        words += ["--exponential", exponential]
    return words


def _rows(settings: GroupSettings) -> dict[str, str]:
    return {
        "order": "by message group" if settings.orderly else "none",
        "redeliveries": f"at most {settings.retry_max:,}",
        "back-off": backoff_text(settings) or "the default",
    }


async def _preview_create(_client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    group = form.required("group")
    wanted = _changed(form, GroupSettings())
    return Preview(
        f"Make the consumer group {group} on every broker?",
        settings.command("group", "create", group, *_words(form)),
        "Create",
        ("setting", "value"),
        tuple(_rows(wanted).items()),
    )


async def _create(client: Client, form: Form) -> Outcome:
    group = form.required("group")
    made = await client.admin.groups.create(group, _changed(form, GroupSettings()))
    return _outcome(f"{group} is there", group, made.of(one.broker for one in made))


async def _preview_alter(client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    group, words = form.required("group"), _words(form)
    if not words:
        raise TroveError(errors.REQUEST_ILLEGAL, "nothing to change: every field is empty")
    rows: list[tuple[str, ...]] = []
    for one in await client.admin.groups.describe(group):
        before, after = _rows(one.settings), _rows(_changed(form, one.settings))
        rows += [(one.broker, name, before[name], after[name]) for name in before]
    return Preview(
        f"Change the settings of {group}? They hold from its next delivery on.",
        settings.command("group", "alter", group, *words),
        "Change",
        ("broker", "setting", "now", "then"),
        tuple(row for row in rows if row[2] != row[3]),
    )


async def _alter(client: Client, form: Form) -> Outcome:
    group = form.required("group")
    described = await client.admin.groups.describe(group)
    for one in described:
        await client.admin.groups.alter(group, _changed(form, one.settings), broker=one.broker)
    altered = BrokerAnswers([one.broker for one in described], pending=described.missing)
    return _outcome(f"{group} has the new settings", group, altered)


async def _preview_delete(client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    group = form.required("group")
    described = await client.admin.groups.describe(group)
    lags = await client.admin.groups.lag(group)
    rows = tuple(
        (
            one.broker,
            in_words(one.topics) or "—",
            number_text(one.member_count),
            number_text(sum(lag.lag for lag in lags if lag.broker == one.broker)),
            number_text(sum(lag.in_flight for lag in lags if lag.broker == one.broker)),
        )
        for one in described
    )
    return Preview(
        f"Delete {group} with its offsets and its messages in flight? Its dead letters stay. "
        "A consumer that subscribes again begins where a new group does.",
        settings.command("group", "delete", group, "--yes"),
        "Delete",
        ("broker", "topics", "members", "lag", "in flight"),
        rows,
        destructive=True,
    )


async def _delete(client: Client, form: Form) -> Outcome:
    group = form.required("group")
    brokers = await client.admin.groups.delete(group)
    sentence = f"{group} is deleted on {in_words(brokers)}.{not_done_on(brokers.pending, brokers.later)}"
    return Outcome(sentence, links=(("the groups", "/groups"),))


def _outcome(sentence: str, group: str, brokers: BrokerAnswers[str]) -> Outcome:
    text = f"{sentence} on {in_words(brokers)}.{not_done_on(brokers.pending, brokers.later)}"
    return Outcome(text, links=(("the group", link("/group", name=group)),))


# --- its offsets -------------------------------------------------------------------------------------
_TARGETS: Final = {"earliest": "to_earliest", "latest": "to_latest"}


async def _target(client: Client, topic: str, form: Form) -> dict[str, Any]:
    """The arguments of the SDK's call."""
    kind = form.text("to")
    if kind in _TARGETS:
        return {_TARGETS[kind]: True}
    if kind == "offset":
        return {"offset": form.number("value")}
    moment = await moment_of(client, topic, form.required("value"))
    assert moment is not None
    return {"timestamp": moment}


def _target_words(target: Mapping[str, Any]) -> list[str]:
    ((name, value),) = target.items()
    if name in _TARGETS.values():
        return ["--" + name.replace("_", "-")]
    return ["--to-offset" if name == "offset" else "--to-time", str(value)]


async def _preview_reset(client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    group, topic = form.required("group"), form.required("topic")
    target = await _target(client, topic, form)
    changes = await client.admin.groups.reset(group, topic, preview=True, **target)
    rows = tuple(
        (
            one.broker,
            str(one.queue_id),
            "—" if one.offset_before is None else number_text(one.offset_before),
            number_text(one.offset),
            f"{one.offset - (one.offset_before or 0):+,}",
            number_text(one.in_flight),
        )
        for one in changes
    )
    moved = [one.offset - (one.offset_before or 0) for one in changes]
    again, skipped = -sum(step for step in moved if step < 0), sum(step for step in moved if step > 0)
    effect = f"messages consumed again: {again:,}; skipped: {skipped:,}"
    where = f" to {moment_text(int(target['timestamp']))} UTC" if "timestamp" in target else ""
    forgotten = sum(one.in_flight for one in changes)
    return Preview(
        f"Reset {group} on {topic}{where}? {effect}; {forgotten:,} in flight are forgotten.",
        settings.command("group", "reset", group, topic, *_target_words(target)),
        "Reset",
        ("broker", "queue", "offset now", "offset then", "change", "in flight"),
        rows,
        # An hour ago is another time when it is confirmed.
        form.with_value("value", str(target["timestamp"])) if "timestamp" in target else None,
    )


async def _reset(client: Client, form: Form) -> Outcome:
    group, topic = form.required("group"), form.required("topic")
    changes = await client.admin.groups.reset(group, topic, **await _target(client, topic, form))
    rows = tuple(
        (one.broker, str(one.queue_id), number_text(one.offset_before), number_text(one.offset))
        for one in changes
    )
    return Outcome(
        f"{group} continues at these offsets of {topic}.{not_done_on(changes.pending)}",
        ("broker", "queue", "offset before", "offset now"),
        rows,
        (("the group", link("/group", name=group)),),
    )


ACTS: Final[Mapping[str, Act]] = {
    "create-group": Act("Create a consumer group", _preview_create, _create),
    "alter-group": Act("Change a consumer group", _preview_alter, _alter),
    "delete-group": Act("Delete a consumer group", _preview_delete, _delete),
    "reset": Act("Reset a group", _preview_reset, _reset),
}
