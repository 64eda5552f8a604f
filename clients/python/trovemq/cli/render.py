"""Answers for people: tables and cards. All text from a message is made printable first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from trovemq_proto.time_text import format_time

if TYPE_CHECKING:
    from trovemq import DelayedMessage
    from trovemq_proto.records import Message

BODY_PREVIEW_CHARACTERS: Final = 60
BODY_SHOWN_BYTES: Final = 16_384


def humane_size(size_bytes: int) -> str:
    """`512 B`, `1.5 KiB`, `64.0 MiB`."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def printable(text: str) -> str:
    """The text with control characters and lone surrogates escaped: no message can control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def body_preview(body: bytes) -> str:
    """The body's beginning on one line; bytes that are not UTF-8 as \\xNN."""
    head = body[: 4 * BODY_PREVIEW_CHARACTERS]
    text = printable(head.decode("utf-8", "backslashreplace"))
    shown = text[:BODY_PREVIEW_CHARACTERS]
    return shown if shown == text and head == body else shown + "…"


def _preview_of(message: Message) -> str:
    """The body's beginning, or why it cannot be shown."""
    return f"({message.body_error})" if message.body_error else body_preview(message.body)


def body_text(body: bytes) -> str:
    """The body, at most its first 16 KiB."""
    text = body[:BODY_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    shown = "\n".join(printable(line) for line in text.split("\n"))
    return shown if len(body) <= BODY_SHOWN_BYTES else f"{shown}… ({humane_size(len(body))} in all)"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> Table:
    """A plain table; the columns in `numbers` are right-aligned, and integers get thousands separators."""
    grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column in numbers
        grid.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(value) for value in row))
    return grid


def card(fields: Mapping[str, object]) -> Table:
    """Names and values, one per line."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields.items():
        grid.add_row(Text(name), _cell(value))
    return grid


def _cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-")
    if isinstance(value, int) and not isinstance(value, bool):
        return Text(f"{value:,}")
    return Text(str(value))


def messages_table(messages: Iterable[Message]) -> Table:
    """One line per message."""
    columns = ("stored", "topic", "queue", "offset", "tag", "keys", "size", "body")
    rows = (
        (
            format_time(message.store_timestamp),
            printable(message.topic),
            message.queue_id,
            message.queue_offset,
            printable(message.tags or "-"),
            printable(" ".join(message.keys) or "-"),
            humane_size(len(message.body)),
            Text(_preview_of(message), no_wrap=True, overflow="ellipsis"),
        )
        for message in messages
    )
    grid = table(columns, rows, numbers=("queue", "offset", "size"))
    for column in grid.columns[:-1]:
        column.no_wrap = True  # on a narrow screen the body is cut
    return grid


def delayed_table(messages: Iterable[DelayedMessage]) -> Table:
    """One line per message that waits for its delivery time."""
    columns = ("delivered at", "topic", "state", "tag", "keys", "message id", "recall handle")
    rows = (
        (
            format_time(one.delivery_timestamp),
            printable(one.topic),
            "pending",
            printable(one.message.tags or "-"),
            printable(" ".join(one.message.keys) or "-"),
            printable(one.message.message_id),
            one.recall_handle,
        )
        for one in messages
    )
    return table(columns, rows)


def message_line(message: Message) -> Text:
    """One message on one line, for `tail`."""
    place = f"{printable(message.topic)}/{message.queue_id}@{message.queue_offset}"
    tag = f" [{printable(message.tags)}]" if message.tags else ""
    return Text(f"{format_time(message.store_timestamp)} {place}{tag} {_preview_of(message)}")


def message_card(message: Message) -> Table:
    """All details of one message."""
    own = {
        name: value for name, value in message.properties.items() if name not in {"KEYS", "TAGS", "UNIQ_KEY"}
    }
    fields: dict[str, object] = {
        "topic": printable(message.topic),
        "queue": message.queue_id,
        "queue offset": message.queue_offset,
        "commit log offset": message.physical_offset,
        "offsetMsgId": message.offset_msg_id,
        "message id": printable(message.message_id),
        "keys": printable(" ".join(message.keys) or "-"),
        "tag": printable(message.tags or "-"),
        "born": f"{format_time(message.born_timestamp)} at {message.born_host}",
        "stored": f"{format_time(message.store_timestamp)} at {message.store_host}",
        "properties": printable(" ".join(f"{name}={value}" for name, value in own.items()) or "-"),
        "body": f"{humane_size(len(message.body))}, CRC {message.body_crc:08x}",
    }
    grid = card(fields)
    grid.add_row(Text(""), Text(message.body_error or body_text(message.body)))
    return grid
