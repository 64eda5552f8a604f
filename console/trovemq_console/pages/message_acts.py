"""Acts on messages: send one, resend dead letters, recall a delayed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trovemq import Client, TroveError, errors
from trovemq.cli.figures import counted
from trovemq_console.pages.act_parts import Act, Outcome, Preview
from trovemq_console.pages.forms import Form, whole_number
from trovemq_console.rendering import link
from trovemq_console.settings import ConsoleSettings


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
    at = ("the message", link("/message", id=receipt.offset_msg_id or receipt.message_id))
    return Outcome(f"Stored on {receipt.durability}: {place}.", links=(at,))


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
        f"Send {counted(count, 'dead letter')} of {group} to their topics again?",
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
    "resend": Act("Resend dead letters", _preview_resend, _resend),
    "recall": Act("Recall a delayed message", _preview_recall, _recall),
}
