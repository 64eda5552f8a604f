"""produce: many messages from a file or standard input.

Messages are sent in chunks, several of them in flight. With --resume FILE this file has the number of
messages that are acknowledged without a gap, and a later call continues after them. Messages in flight when
this process was killed are sent again, with the same message ids: a topic with the option deduplicate stores
each once.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import stat
import sys
import time
from collections import deque
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from trovemq.cli.arguments import BrokerOption, QueueOption, TopicArgument
from trovemq.cli.messages import MessageGroupOption
from trovemq.cli.produce_input import Fields, InputFormat, Outgoing, format_of, read_messages
from trovemq.cli.read_ahead import ReadAhead
from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import Client, Producer

CHUNKS_IN_FLIGHT_MAX: Final = 8
BATCH_MESSAGES_MAX: Final = 1_000
BATCHES_BEFORE: Final = 16
"""A batch has a sixteenth of the messages before it, one at least: few messages are spread over the queues as
evenly as many."""
PROPERTIES_SIZE_MAX: Final = 32_767  # bytes of one message
SAVE_SECONDS: Final = 1.0


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "produce")(produce)


@dataclass(slots=True)
class Position:
    """How many messages of the input are acknowledged.

    Attributes:
        path: The file of the position; None for no file.
        run: The beginning of this input's message ids.
    """

    topic: str
    file: str
    path: Path | None
    run: str = field(default_factory=lambda: secrets.token_hex(12).upper())
    messages: int = 0
    _saved_at: float = 0.0

    @classmethod
    def open(cls, topic: str, file: str, path: Path | None) -> Position:
        """The position of an earlier call. Raises TroveError REQUEST_ILLEGAL for the file of another
        input."""
        name = file if file == "-" else str(Path(file).resolve())
        position = cls(topic, name, path)
        if path is None or not path.exists():
            return position
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            same = (kept["topic"], kept["file"]) == (topic, name)
            position.run, position.messages = str(kept["run"]), int(kept["messages"])
        except (OSError, ValueError, KeyError, TypeError):
            raise TroveError(errors.REQUEST_ILLEGAL, f"{path} is not a file of `produce --resume`") from None
        if not same:
            text = f"{path} belongs to {kept['file']} into {kept['topic']}; delete it to begin again"
            raise TroveError(errors.REQUEST_ILLEGAL, text)
        return position

    def message_id(self, number: int) -> str:
        """The message id of message `number` of the input; the same at each attempt."""
        return f"{self.run}{number:010X}"

    def advance(self, count: int) -> None:
        """Counts more acknowledged messages; saves the position from time to time."""
        self.messages += count
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Replaces the file. Raises TroveError REQUEST_ILLEGAL if it cannot be written."""
        if self.path is None:
            return
        self._saved_at = time.monotonic()
        text = json.dumps(
            {"topic": self.topic, "file": self.file, "run": self.run, "messages": self.messages}
        )
        new = self.path.with_name(self.path.name + ".new")
        try:
            new.write_text(text + "\n", encoding="utf-8")
            os.replace(new, self.path)
        except OSError as error:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{self.path}: {error.strerror}") from None


async def produce(
    session: Session,
    topic: TopicArgument,
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="- or nothing: standard input.", show_default=False)
    ] = "-",
    format_: Annotated[
        InputFormat | None,
        typer.Option(
            "--format",
            help="Each message: a line, a JSON value a line, a row of CSV, an object of `pull --json`; "
            "else by the file's name.",
            show_default=False,
        ),
    ] = None,
    key_fields: Annotated[
        list[str] | None,
        typer.Option(
            "--key-field", metavar="NAME", help="A field that is a key (repeatable).", show_default=False
        ),
    ] = None,
    tag_field: Annotated[
        str | None,
        typer.Option("--tag-field", metavar="NAME", help="The field that is the tag.", show_default=False),
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option(
            "--message-id-field", metavar="NAME", help="The field that is the message id.", show_default=False
        ),
    ] = None,
    group_field: Annotated[
        str | None,
        typer.Option(
            "--group-field", metavar="NAME", help="The field that is the message group.", show_default=False
        ),
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="One tag for all.", show_default=False)
    ] = None,
    message_group: MessageGroupOption = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FILE",
            help="Keeps in FILE how far it is, and continues there at the next call.",
            show_default=False,
        ),
    ] = None,
    queue: QueueOption = None,
    broker: BrokerOption = None,
) -> None:
    """Send the messages of a file or of standard input. One a line or row; it waits until all are stored."""
    format_ = format_ or format_of(file)
    fields = Fields(tuple(key_fields or ()), tag_field, id_field, group_field)
    if fields.named and format_ not in (InputFormat.JSON, InputFormat.CSV):
        names = "--key-field, --tag-field, --id-field and --group-field"
        raise typer.BadParameter(f"{names} are for --format json and csv")
    if tag and tag_field:
        raise typer.BadParameter("give --tag or --tag-field, not both")
    if message_group and group_field:
        raise typer.BadParameter("give --message-group or --group-field, not both")
    position = Position.open(topic, file, resume)
    position.save()  # a file that cannot be written is found before anything is sent
    skipped = position.messages
    with ExitStack() as stack:
        source, size = _opened(file, stack)
        if file == "-" and sys.stdin.isatty():
            session.progress.off()  # it would be drawn over the typed text
            sys.stderr.write("one message a line; Ctrl-D ends\n")
        messages = islice(read_messages(source, format_, fields), skipped, None)
        async with AsyncExitStack() as clients:
            client = await clients.enter_async_context(session.client())
            repeats = await _recognises(client, topic)
            producer = await clients.enter_async_context(client.producer(topic, retry_in_doubt=repeats))
            place = {"queue_id": queue, "broker": broker}
            sending = Sending(session, producer, position, tag, message_group, place)
            reading = ReadAhead(messages)
            try:
                async for chunk in reading.chunks():
                    await sending.send(chunk)
                    done = _read_to(source) if size else position.messages
                    session.progress.at(done, size, "sending", in_bytes=bool(size))
                await sending.finish()
                reading.check()
            except TroveError as error:
                await sending.abandon()
                note = f"{error.message} ({_stored(position)})"
                raise TroveError(error.spec, note, **error.fields) from error
            finally:
                reading.close()
                position.save()
    fields_: dict[str, object] = {
        "topic": topic,
        "messages": position.messages - skipped,
        "skipped": skipped,
    }
    session.output.item(fields_)
    if not session.output.objects:
        from trovemq.cli.render import card

        session.output.show(
            card({name: value for name, value in fields_.items() if value != 0 or name != "skipped"})
        )


async def _recognises(client: Client, topic: str) -> bool:
    """Whether the topic stores a repeated message id once: then a message that may have been stored, as in
    the failover of a replica group, is sent again."""
    try:
        described = await client.admin.describe_topic(topic)
    except TroveError:  # the caller may not ask, or the topic is not there: sending says so
        return False
    return bool(described) and all("deduplicate" in one.options for one in described)


def _stored(position: Position) -> str:
    messages = "1 message is" if position.messages == 1 else f"{position.messages:,} messages are"
    again = "" if position.path is None else "; the same command continues after that"
    return f"{messages} stored{again}"


def _opened(file: str, stack: ExitStack) -> tuple[IO[bytes], int]:
    """The input, and its size; 0 if that is unknown. Raises TroveError REQUEST_ILLEGAL."""
    if file == "-":
        return _standard_input(), 0
    try:
        source = stack.enter_context(Path(file).open("rb"))  # noqa: SIM115  the stack closes it
        status = os.fstat(source.fileno())
    except OSError as error:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{file}: {error.strerror or error}") from None
    return source, status.st_size if stat.S_ISREG(status.st_mode) else 0


def _read_to(source: IO[bytes]) -> int:
    """How far the file has been read, by its descriptor: `source` belongs to the reading thread, and a
    concurrent seek would lose bytes."""
    return os.lseek(source.fileno(), 0, os.SEEK_CUR)


def _standard_input() -> IO[bytes]:
    """A separate reader: if a thread waits in that of `sys.stdin`, Python aborts at its end."""
    try:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except OSError:  # standard input is not a file: in tests
        return sys.stdin.buffer


class Sending:
    """Chunks in flight, acknowledged in their order."""

    def __init__(
        self,
        session: Session,
        producer: Producer,
        position: Position,
        tag: str | None,
        message_group: str | None,
        place: dict[str, Any],
    ) -> None:
        self._session = session
        self._producer = producer
        self._position = position
        self._tag = tag
        self._message_group = message_group
        self._place = place
        self._order = asyncio.Lock()  # for messages with a group: one chunk after the other
        self._number = position.messages
        self._in_flight: deque[tuple[asyncio.Task[Any], list[Outgoing]]] = deque()

    async def send(self, chunk: list[Outgoing]) -> None:
        """Sends a chunk; waits while too many are in flight. Raises TroveError."""
        while chunk:
            size = min(BATCH_MESSAGES_MAX, max(1, self._number // BATCHES_BEFORE))
            part, chunk = chunk[:size], chunk[size:]
            await self._send_part(part)

    async def _send_part(self, chunk: list[Outgoing]) -> None:
        numbers = range(self._number, self._number + len(chunk))
        self._number += len(chunk)
        message_ids = [
            one.message_id or self._position.message_id(number)
            for one, number in zip(chunk, numbers, strict=True)
        ]
        has_groups = self._message_group is not None or any(one.message_group for one in chunk)
        send = self._send_each if has_groups else self._send_together
        self._in_flight.append((asyncio.ensure_future(send(chunk, message_ids)), chunk))
        if len(self._in_flight) >= CHUNKS_IN_FLIGHT_MAX:
            await self._take_first()

    async def _send_together(self, chunk: list[Outgoing], message_ids: list[str]) -> None:
        keys = [one.keys for one in chunk]
        tags = [one.tag or self._tag for one in chunk]
        properties = [one.properties for one in chunk]
        await self._producer.send_batch(
            [one.body for one in chunk],
            keys=keys if any(keys) else None,
            tags=tags if any(tags) else None,
            properties=properties if any(properties) else None,
            message_ids=message_ids,
            **self._place,
        )

    async def _send_each(self, chunk: list[Outgoing], message_ids: list[str]) -> None:
        """Sends each message to the queue of its message group, in the order of the input."""
        answers: list[asyncio.Future[Any]] = []
        try:
            async with self._order:
                for one, message_id in zip(chunk, message_ids, strict=True):
                    await self._producer.ready(len(one.body) + PROPERTIES_SIZE_MAX)
                    sent = self._producer.send_nowait(
                        one.body,
                        keys=one.keys,
                        tag=one.tag or self._tag,
                        properties=one.properties,
                        message_id=message_id,
                        message_group=one.message_group or self._message_group,
                        **self._place,
                    )
                    answers.append(sent)
        finally:
            await asyncio.gather(*answers, return_exceptions=True)
        for answer in answers:
            answer.result()

    async def finish(self) -> None:
        """Waits for all chunks. Raises TroveError."""
        while self._in_flight:
            await self._take_first()

    async def _take_first(self) -> None:
        task, chunk = self._in_flight.popleft()
        try:
            await self._session.call(task)
        except TroveError as error:
            first, last = chunk[0].line, chunk[-1].line
            where = f"line {first}" if first == last else f"lines {first} to {last}"
            raise TroveError(error.spec, f"{where}: {error.message}", **error.fields) from error
        self._position.advance(len(chunk))

    async def abandon(self) -> None:
        """Cancels the chunks in flight."""
        for task, _ in self._in_flight:
            task.cancel()
        await asyncio.gather(*(task for task, _ in self._in_flight), return_exceptions=True)
