"""Acts: everything that changes something. Each is asked for twice, and shows the command that does the same.

The first POST shows the effect; the second one, from that page, makes the change. Without `--allow-changes`
neither does anything. Forms carry the session's token; see `guard` for the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from trovemq import Client, TroveError, errors
from trovemq_console.guard import session_of
from trovemq_console.pages.console import Console
from trovemq_console.pages.topics import moment_of
from trovemq_console.rendering import link, moment_text, number_text
from trovemq_console.settings import ConsoleSettings

FORM_SIZE_MAX: Final = 13 << 20  # a body of 4 MiB, each byte as %XX, and the rest
FIELDS_MAX: Final = 1_100
_OFFSET_DIGITS_MAX: Final = 19


class Form:
    """The fields of a form, each as often as it was sent."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self.fields = tuple((name, value) for name, value in fields if name not in ("token", "confirmed"))
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self._values.setdefault(name, []).append(value)

    def with_value(self, name: str, value: str) -> Form:
        """The same, but for one field."""
        return Form([(key, value if key == name else old) for key, old in self.fields])

    def text(self, name: str) -> str:
        """The field's value; "" where it is missing."""
        return self._values.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """Every value of the field that is not empty."""
        return [value for value in self._values.get(name, []) if value]

    def required(self, name: str) -> str:
        """Raises TroveError REQUEST_ILLEGAL where it is empty."""
        value = self.text(name).strip()
        if not value:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{name} is empty", field=name)
        return value

    def number(self, name: str) -> int:
        """Raises TroveError REQUEST_ILLEGAL for anything else."""
        return whole_number(self.required(name), name)


def whole_number(value: str, name: str) -> int:
    """Raises TroveError REQUEST_ILLEGAL."""
    if not (value.isascii() and value.isdigit() and len(value) <= _OFFSET_DIGITS_MAX):
        raise TroveError(errors.REQUEST_ILLEGAL, f"{name}={value[:40]} is not a whole number", field=name)
    return int(value)


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect that an act would have.

    Attributes:
        question: To be confirmed.
        columns: Of `rows`, which give the details.
        command: The same as a command line.
        button: The button's text.
        form: The form to confirm, where it is not the one that was sent.
    """

    question: str
    command: str
    button: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    form: Form | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect that it had; `failed` where a part of it did not work."""

    sentence: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Act:
    """An act: its preview, and doing it."""

    title: str
    preview: Callable[[Client, Form, ConsoleSettings], Awaitable[Preview]]
    perform: Callable[[Client, Form], Awaitable[Outcome]]


async def act(console: Console, request: Request) -> Response:
    """Shows an act's preview, or does it."""
    chosen = ACTS.get(request.path_params["name"])
    if chosen is None:
        raise TroveError(errors.REQUEST_ILLEGAL, "there is no such act")
    if not console.settings.allow_changes:
        return console.respond(request, "read_only.html", 403, title=chosen.title)
    form = await read_form(request)
    if not console.sessions.is_form_token(session_of(request), form.text("token")):
        return console.respond(request, "expired.html", 403, title=chosen.title)
    client = await console.client()
    if form.text("confirmed") != "yes":
        preview = await chosen.preview(client, form, console.settings)
        values: dict[str, Any] = {
            "preview": preview,
            "form": preview.form or form,
            "action": request.url.path,
        }
        return console.respond(request, "confirm.html", title=chosen.title, **values)
    outcome = await chosen.perform(client, form)
    return console.respond(request, "outcome.html", title=chosen.title, outcome=outcome)


async def read_form(request: Request) -> Form:
    """The form. Raises TroveError REQUEST_ILLEGAL where it is too large or not a form."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > FORM_SIZE_MAX:
            raise TroveError(errors.REQUEST_ILLEGAL, f"the form is larger than {FORM_SIZE_MAX >> 20} MiB")
    try:
        pairs = parse_qsl(content.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise TroveError(errors.REQUEST_ILLEGAL, f"that is not a form: {error}") from None
    return Form(pairs)


# --- a test message ---------------------------------------------------------------------------------
def _body(form: Form) -> str:
    """Browsers send each line's end as CR LF."""
    return form.text("body").replace("\r\n", "\n")


async def _preview_send(client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    topic = form.required("topic")
    body = _body(form)
    words = ["send", topic, body if len(body) <= 200 else "-"]
    words += [word for key in form.text("keys").split() for word in ("--key", key)]
    words += ["--tag", form.text("tag")] if form.text("tag") else []
    size = len(body.encode("utf-8", "replace"))
    question = f"Send one message of {size:,} bytes to {topic}? Its consumers will receive it."
    rows = [("topic", topic), ("keys", form.text("keys")), ("tag", form.text("tag")), ("body", body[:400])]
    return Preview(
        question,
        settings.command(*words),
        "Send",
        ("field", "value"),
        tuple(row for row in rows if row[1]),
    )


async def _send(client: Client, form: Form) -> Outcome:
    receipt = await client.send(
        form.required("topic"),
        _body(form).encode("utf-8", "replace"),
        keys=form.text("keys").split(),
        tag=form.text("tag") or None,
    )
    place = f"{receipt.broker}, queue {receipt.queue_id}, offset {receipt.queue_offset}"
    at = ("the message", link("/message", id=receipt.offset_msg_id or receipt.unique_key))
    return Outcome(f"Stored on {receipt.durability}: {place}.", links=(at,))


# --- a group's offsets ------------------------------------------------------------------------------
_TARGETS: Final = {"min": "to_min", "max": "to_max"}


def _target(form: Form) -> dict[str, Any]:
    """The arguments of the SDK's call."""
    kind = form.text("to")
    if kind in _TARGETS:
        return {_TARGETS[kind]: True}
    if kind == "offset":
        return {"offset": form.number("value")}
    moment = moment_of(form.required("value"))
    assert moment is not None
    return {"timestamp": moment}


def _target_words(target: Mapping[str, Any]) -> list[str]:
    ((name, value),) = target.items()
    if name in ("to_min", "to_max"):
        return ["--" + name.replace("_", "-")]
    return ["--to-offset" if name == "offset" else "--to-time", str(value)]


async def _preview_reset(client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    group, topic, target = form.required("group"), form.required("topic"), _target(form)
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
    moved = sum(one.offset - (one.offset_before or 0) for one in changes)
    effect = f"{-moved:,} messages are consumed again" if moved < 0 else f"{moved:,} messages are skipped"
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
    changes = await client.admin.groups.reset(group, topic, **_target(form))
    rows = tuple(
        (one.broker, str(one.queue_id), number_text(one.offset_before), number_text(one.offset))
        for one in changes
    )
    return Outcome(
        f"{group} continues at these offsets of {topic}.",
        ("broker", "queue", "offset before", "offset now"),
        rows,
        (("the group", link("/group", name=group)),),
    )


# --- dead letters -----------------------------------------------------------------------------------
def _letters(form: Form) -> dict[str, list[int]]:
    """The chosen offsets by broker, from values `BROKER OFFSET`."""
    found: dict[str, list[int]] = {}
    for value in form.all("letter"):
        broker, _, offset = value.rpartition(" ")
        found.setdefault(broker, []).append(whole_number(offset, "letter"))
    if not found:
        raise TroveError(errors.REQUEST_ILLEGAL, "no dead letter was chosen", field="letter")
    return found


async def _preview_resend(client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    group, chosen = form.required("group"), _letters(form)
    resent: set[tuple[str, int]] = set()
    for broker, offsets in chosen.items():
        before = await client.admin.groups.resent_dead_letters(group, offsets, broker=broker)
        resent |= {(broker, one.offset) for one in before if not one.error}
    rows = tuple(
        (
            broker,
            str(offset),
            "sent before: it is not sent again" if (broker, offset) in resent else "is sent",
        )
        for broker, offsets in chosen.items()
        for offset in offsets
    )
    count = len(rows) - len(resent)
    commands = [
        settings.command(
            *("dlq", "resend", group),
            *(word for offset in offsets for word in ("--offset", str(offset))),
            *("--broker", broker, "--yes"),
        )
        for broker, offsets in chosen.items()
    ]
    return Preview(
        f"Send {count:,} dead letters of {group} to their topics again?",
        "\n".join(commands),
        "Resend",
        ("broker", "offset", "result"),
        rows,
    )


async def _resend(client: Client, form: Form) -> Outcome:
    group = form.required("group")
    results = [
        one
        for broker, offsets in _letters(form).items()
        for one in await client.admin.groups.resend_dead_letters(group, offsets, broker=broker)
    ]
    rows = tuple(
        (
            one.broker,
            str(one.offset),
            one.topic or "—",
            f"{one.error}: {one.error_message}" if one.error else "sent before" if one.again else "sent",
        )
        for one in results
    )
    failed = sum(bool(one.error) for one in results)
    again = sum(one.again for one in results)
    return Outcome(
        f"{len(results) - failed - again:,} sent, {again:,} had been sent before, {failed:,} not sent.",
        ("broker", "offset", "topic", "result"),
        rows,
        (("the dead letters", link("/dead-letters", group=group)),),
        failed=bool(failed),
    )


# --- delayed messages -------------------------------------------------------------------------------
async def _preview_recall(_client: Client, form: Form, settings: ConsoleSettings) -> Preview:
    topic, handle = form.required("topic"), form.required("handle")
    return Preview(
        f"Recall this delayed message of {topic}? It will never be delivered.",
        settings.command("recall", topic, handle),
        "Recall",
    )


async def _recall(client: Client, form: Form) -> Outcome:
    key = await client.recall(form.required("topic"), form.required("handle"))
    return Outcome(f"{key} is recalled: it is not delivered.", links=(("delayed messages", "/delayed"),))


ACTS: Final[Mapping[str, Act]] = {
    "send": Act("Send a test message", _preview_send, _send),
    "reset": Act("Reset a group", _preview_reset, _reset),
    "resend": Act("Resend dead letters", _preview_resend, _resend),
    "recall": Act("Recall a delayed message", _preview_recall, _recall),
}
