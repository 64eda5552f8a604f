"""Acts on topics: make one, change it, delete it with its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trovemq import BrokerAnswers, Client, TopicDescription, TroveError, errors
from trovemq.cli.figures import counted
from trovemq_console.pages.act_parts import Act, Outcome, Preview, in_words, not_done_on
from trovemq_console.pages.forms import Form
from trovemq_console.pages.topics import MESSAGE_TYPES, depth, groups_of
from trovemq_console.rendering import link, number_text
from trovemq_console.settings import ConsoleSettings

QUEUES_DEFAULT: Final = 8  # as the command line
TYPE_DEFAULT: Final = "NORMAL"
OPTIONS: Final = ("deduplicate", "order", "retention", "retention_age_max")
INDEXED: Final = "indexed_properties"


def _options(form: Form) -> dict[str, str]:
    """The options that are filled in."""
    given = {name: form.text(name).strip() for name in OPTIONS} | {INDEXED: ",".join(form.words(INDEXED))}
    return {name: value for name, value in given.items() if value}


def _queue_count(form: Form) -> int | None:
    return form.number("queues") if form.text("queues").strip() else None


def _message_type(form: Form) -> str | None:
    return form.choice("type", ("", *MESSAGE_TYPES)) or None


def _words(form: Form) -> list[str]:
    """The options of the command line that say the same."""
    words = []
    if (queues := _queue_count(form)) is not None:
        words += ["--queues", str(queues)]
    if kind := _message_type(form):
        words += ["--type", kind]
    for name, value in _options(form).items():
        if name == INDEXED:
            words += [word for one in value.split(",") for word in ("--indexed-property", one)]
        else:
            words += ["--" + name.replace("_", "-"), value]
    return words


def _values(form: Form) -> dict[str, str]:
    """The form's values by the names that the page shows."""
    given = {"queues": _queue_count(form), "type": _message_type(form)}
    return {name: str(value) for name, value in given.items() if value is not None} | _options(form)


async def _preview_create(_client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    topic = form.required("topic")
    return Preview(
        f"Create the topic {topic} on every broker?",
        settings.command("topic", "create", topic, *_words(form)),
        "Create",
        ("setting", "value"),
        tuple(({"queues": str(QUEUES_DEFAULT), "type": TYPE_DEFAULT} | _values(form)).items()),
    )


async def _create(client: Client, form: Form) -> Outcome:
    topic, count = form.required("topic"), _queue_count(form)
    made = await client.admin.create_topic(
        topic,
        queue_count=QUEUES_DEFAULT if count is None else count,
        message_type=_message_type(form) or TYPE_DEFAULT,
        options=_options(form),
    )
    return _outcome(f"{topic} is there", topic, made)


async def _preview_alter(client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    topic, wanted = form.required("topic"), _values(form)
    if not wanted:
        raise TroveError(errors.REQUEST_ILLEGAL, "nothing to change: every field is empty")
    rows = []
    for one in await client.admin.describe_topic(topic):
        before = {"queues": str(one.queue_count), "type": one.message_type, **one.options}
        rows += [(one.broker, name, before.get(name, "off"), value) for name, value in wanted.items()]
    return Preview(
        f"Change {topic}?",
        settings.command("topic", "alter", topic, *_words(form)),
        "Change",
        ("broker", "setting", "now", "then"),
        tuple(rows),
    )


async def _alter(client: Client, form: Form) -> Outcome:
    topic = form.required("topic")
    altered = await client.admin.alter_topic(
        topic, queue_count=_queue_count(form), message_type=_message_type(form), options=_options(form)
    )
    return _outcome(f"{topic} is changed", topic, altered)


async def _preview_delete(client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    topic = form.required("topic")
    described = await client.admin.describe_topic(topic)
    groups = await groups_of(client, topic)
    reading = f" Groups that read it: {in_words(group.group for group in groups)}." if groups else ""
    return Preview(
        f"Delete {topic} with its {counted(depth(described), 'message')}? They do not come back.{reading}",
        settings.command("topic", "delete", topic, "--yes"),
        "Delete",
        ("broker", "queues", "messages"),
        tuple((one.broker, str(one.queue_count), number_text(depth([one]))) for one in described),
        destructive=True,
    )


async def _delete(client: Client, form: Form) -> Outcome:
    topic = form.required("topic")
    deleted = await client.admin.delete_topic(topic)
    sentence = f"{topic} is deleted on {in_words(deleted)}.{not_done_on(deleted.pending, deleted.later)}"
    return Outcome(sentence, links=(("the topics", "/topics"),))


def _outcome(sentence: str, topic: str, described: BrokerAnswers[TopicDescription]) -> Outcome:
    brokers = in_words(one.broker for one in described)
    text = f"{sentence} on {brokers}.{not_done_on(described.pending, described.later)}"
    return Outcome(text, links=(("the topic", link("/topic", name=topic)),))


ACTS: Final[Mapping[str, Act]] = {
    "create-topic": Act("Create a topic", _preview_create, _create),
    "alter-topic": Act("Change a topic", _preview_alter, _alter),
    "delete-topic": Act("Delete a topic", _preview_delete, _delete),
}
