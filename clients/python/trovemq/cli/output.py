"""The output of a verb: the answer goes to standard output when it is complete, the rest to standard error.

With `--json` an answer is one JSON object per line (ASCII only, so that it works in every locale), with `-o
yaml` a list of them, with `-o body` the messages' bodies, byte for byte, a newline after each. With the first
two standard error gets at most one JSON object: `error`, `code`, `message`, `whatToDo`, `retriable`, `fields`
of a failure, or the notes that the verb collected (`complete`, `cursor`, …).
"""

from __future__ import annotations

import asyncio
import io
import json as json_module
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

from trovemq.cli.message_format import MessageFormat
from trovemq.cli.options import Format
from trovemq.cli.unwaiting import UnwaitingWriter
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.message_objects import body_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

ANSWER_IN_MEMORY_BYTES_MAX: Final = 16 << 20
COLUMNS_WITHOUT_TERMINAL: Final = 200
CLEAR_SCREEN: Final = b"\x1b[H\x1b[2J"

_encode = json_module.JSONEncoder(separators=(",", ":")).encode


class Output:
    """The output of one run of a verb. One of `finish`, `fail`, `usage`, `discard` ends it; then call
    `close`."""

    def __init__(
        self,
        format_: Format,
        *,
        stdout: IO[bytes],
        stderr: IO[str],
        terminal: bool,
        message_format: MessageFormat | None = None,
    ) -> None:
        self.format: Final = format_
        self._message_format: Final = message_format
        self.objects: Final = format_ is not Format.TABLE or message_format is not None
        """Whether the answer consists of objects (`item`); otherwise of text for people (`show`)."""
        self._json_on_stderr = format_ in (Format.JSON, Format.YAML)
        self._stdout = stdout
        self._stderr = stderr
        self._terminal = terminal
        # A long answer is kept on disk: nothing may be printed before it is known to be complete.
        self._answer: IO[bytes] = tempfile.SpooledTemporaryFile(ANSWER_IN_MEMORY_BYTES_MAX)  # noqa: SIM115
        self._notes: dict[str, object] = {}
        self._remarks: list[str] = []
        self._on_interrupt = ""

    @classmethod
    def open(cls, format_: Format, message_format: MessageFormat | None = None) -> Output:
        """The process's own standard output and error."""
        return cls(
            format_,
            stdout=sys.stdout.buffer,
            stderr=sys.stderr,
            terminal=sys.stdout.isatty(),
            message_format=message_format,
        )

    def item(self, fields: Mapping[str, object], *, newline: bool = True) -> None:
        """Adds an object to the answer; nothing in the form for people. newline: after a body."""
        if self.format is Format.JSON:
            self._answer.write(_encode(fields).encode("ascii") + b"\n")
        elif self.format is Format.YAML:
            self._answer.write(_yaml_item(fields))
        elif self._message_format is not None:
            self._answer.write(self._message_format.render(fields))
        elif self.format is Format.BODY and (body := body_of(fields)) is not None:
            self._answer.write(body + (b"\n" if newline else b""))

    def text(self, text: str) -> None:
        """Adds a text to the answer that is written unchanged in every format."""
        self._answer.write(text.encode("utf-8", "replace"))

    def show(self, renderable: RenderableType) -> None:
        """Adds a part to the answer for people; nothing if the answer consists of objects."""
        if self.objects:
            return
        text = io.StringIO()
        self._console(text, terminal=self._terminal).print(renderable)
        self._answer.write(text.getvalue().encode("utf-8", "replace"))

    def note(self, **fields: object) -> None:
        """Adds fields to the object on standard error; only with --json."""
        self._notes.update(fields)

    def remark(self, text: str) -> None:
        """Adds a line on standard error for people; nothing with --json."""
        self._remarks.append(text)

    @property
    def shows_progress(self) -> bool:
        """Whether standard error is a terminal."""
        return self._stderr.isatty() and not self._json_on_stderr

    @property
    def is_terminal(self) -> bool:
        """Whether standard output is a terminal."""
        return self._terminal

    def terminal_console(self) -> Console:
        """The terminal itself, for a view that is replaced."""
        from rich.console import Console

        return Console(file=sys.stdout, highlight=False)

    def replace(self) -> None:
        """Prints the output so far, at a terminal on a cleared screen; then starts again."""
        if self._terminal and not self.objects:
            self._stdout.write(CLEAR_SCREEN)
        self.finish()
        self._stdout.flush()
        self._notes.clear()
        self._remarks.clear()

    def unwaiting(self) -> UnwaitingWriter:
        """Standard output, for a verb that must not wait for a reader; it gets what `take` returns."""
        return UnwaitingWriter(self._stdout)

    def take(self) -> bytes:
        """The output so far, which is not printed any more."""
        self._answer.seek(0)
        taken = self._answer.read()
        self._answer.seek(0)
        self._answer.truncate()
        return taken

    def flush(self) -> None:
        """Prints the output so far: for an answer that never ends. Ctrl-C ends the write by
        KeyboardInterrupt. Raises BrokenPipeError; TroveError REQUEST_ILLEGAL where it cannot be written."""
        self._answer.seek(0)
        with self._interruptible():
            try:
                while chunk := self._answer.read(1 << 20):
                    self._stdout.write(chunk)
                self._stdout.flush()
            except BrokenPipeError:
                raise
            except OSError as error:
                self.discard()
                text = f"standard output: {error.strerror or error}"
                raise TroveError(errors.REQUEST_ILLEGAL, text) from None
        self._answer.seek(0)
        self._answer.truncate()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Lets Ctrl-C end a write that is not read; the loop's own handler would wait for the write."""
        if _cancelled():
            raise KeyboardInterrupt
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        except KeyboardInterrupt:
            self.discard()
            raise
        finally:
            signal.signal(signal.SIGINT, before)

    def finish(self) -> None:
        """Prints the answer, then the notes. Raises BrokenPipeError."""
        self.flush()
        if self._json_on_stderr and self._notes:
            self._stderr.write(_encode(self._notes) + "\n")
        if not self._json_on_stderr:
            for remark in self._remarks:
                self._show_on_stderr(remark, style="dim")

    def say_if_interrupted(self, text: str) -> None:
        """Keeps a text that `interrupted` prints: the state of the cluster after Ctrl-C."""
        self._on_interrupt = text

    def interrupted(self) -> None:
        """Drops the answer, and prints the state of the cluster, if a verb has kept one."""
        if self._on_interrupt and self._json_on_stderr:
            self._stderr.write(_encode({**self._notes, "message": self._on_interrupt}) + "\n")
        elif self._on_interrupt:
            self._show_on_stderr(self._on_interrupt)

    def fail(self, error: TroveError) -> None:
        """Drops the answer, and prints the error with its remedy."""
        if self._json_on_stderr:
            self._stderr.write(_encode({**self._notes, **error_fields(error)}) + "\n")
            return
        self._show_error(f"{error.symbol} ({error.spec.number}): {error.message}", error.spec.what_to_do)

    def _show_error(self, message: str, what_to_do: str) -> None:
        self._show_on_stderr(f"✗ {message}", style="bold red")
        self._show_on_stderr(f"  → {what_to_do}")

    def close(self) -> None:
        """Frees the memory or the file of the answer."""
        self._answer.close()

    def usage(self, message: str, what_to_do: str) -> None:
        """Prints wrong usage."""
        if not self._json_on_stderr:
            self._show_error(message, what_to_do)
            return
        spec = errors.REQUEST_ILLEGAL
        fields = error_fields(TroveError(spec, message)) | {"whatToDo": what_to_do}
        self._stderr.write(_encode(fields) + "\n")

    def discard(self) -> None:
        """Drops the answer, and whatever Python would still write into the broken pipe at exit."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stdout.fileno())

    def _show_on_stderr(self, text: str, style: str = "") -> None:
        from rich.text import Text

        from trovemq.cli.render import printable

        buffer = io.StringIO()
        console = self._console(buffer, terminal=self._stderr.isatty())
        text = "\n".join(printable(line) for line in text.split("\n"))  # it may have text from a server
        console.print(Text(text, style=style), soft_wrap=True)
        encoding = getattr(self._stderr, "encoding", None) or "utf-8"
        self._stderr.write(buffer.getvalue().encode(encoding, "replace").decode(encoding))

    def _console(self, file: io.StringIO, *, terminal: bool) -> Console:
        from rich.console import Console

        if terminal:
            return Console(file=file, force_terminal=True, highlight=False)
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdigit() else COLUMNS_WITHOUT_TERMINAL
        return Console(file=file, width=width, force_terminal=False, highlight=False)


def _cancelled() -> bool:
    """Whether the verb was cancelled by Ctrl-C and has not ended yet."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs
        return False
    return task is not None and task.cancelling() > 0


def _yaml_item(fields: Mapping[str, object]) -> bytes:
    """One entry of a list; later entries belong to the same list."""
    import yaml

    plain = json_module.loads(_encode(fields))  # tuples and enumerations in their JSON form
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump([plain], Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text.encode()


def error_fields(error: TroveError) -> dict[str, object]:
    """The JSON object of an error."""
    return {
        "error": error.symbol,
        "code": error.spec.code,
        "message": error.message,
        "whatToDo": error.spec.what_to_do,
        "retriable": error.retriable,
        "fields": error.fields,
    }
