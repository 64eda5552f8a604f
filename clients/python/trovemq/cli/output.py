"""Where a verb's words go: the answer to standard output once it is whole, the rest to standard error.

With `--json` an answer is one JSON object a line (ASCII only, so that no locale can break it), and standard
error gets at most one JSON object: `error`, `code`, `message`, `whatToDo`, `retriable`, `fields` of a
failure, or the notes that the verb collected (`complete`, `cursor`, …).
"""

from __future__ import annotations

import io
import json as json_module
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Final

from trovemq_proto import errors

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from trovemq_proto.errors import TroveError

ANSWER_IN_MEMORY_BYTES_MAX: Final = 16 << 20
COLUMNS_WITHOUT_TERMINAL: Final = 200

_encode = json_module.JSONEncoder(separators=(",", ":")).encode


class Output:
    """The output of one run of a verb. One of `finish`, `fail`, `usage`, `discard` ends it, then `close`."""

    def __init__(self, *, json: bool, stdout: IO[bytes], stderr: IO[str], terminal: bool) -> None:
        self.json: Final = json
        self._stdout = stdout
        self._stderr = stderr
        self._terminal = terminal
        # A long answer waits on disk: nothing may be printed before it is known to be whole.
        self._answer: IO[bytes] = tempfile.SpooledTemporaryFile(ANSWER_IN_MEMORY_BYTES_MAX)  # noqa: SIM115
        self._notes: dict[str, object] = {}
        self._remarks: list[str] = []

    @classmethod
    def open(cls, *, json: bool) -> Output:
        """The process's own standard output and error."""
        return cls(json=json, stdout=sys.stdout.buffer, stderr=sys.stderr, terminal=sys.stdout.isatty())

    def item(self, fields: Mapping[str, object]) -> None:
        """One object of the answer; only with --json."""
        if self.json:
            self._answer.write(_encode(fields).encode("ascii") + b"\n")

    def show(self, renderable: RenderableType) -> None:
        """One part of the answer for people; nothing with --json."""
        if self.json:
            return
        text = io.StringIO()
        self._console(text, terminal=self._terminal).print(renderable)
        self._answer.write(text.getvalue().encode("utf-8", "replace"))

    def note(self, **fields: object) -> None:
        """Fields of the object on standard error; only with --json."""
        self._notes.update(fields)

    def remark(self, text: str) -> None:
        """A line on standard error for people; nothing with --json."""
        self._remarks.append(text)

    def progress(self, text: str) -> None:
        """A line on standard error at once, for people; nothing with --json."""
        if not self.json:
            self._show_on_stderr(text, style="dim")
            self._stderr.flush()

    def flush(self) -> None:
        """Prints the output so far: for an answer that never ends. Raises BrokenPipeError."""
        self._answer.seek(0)
        while chunk := self._answer.read(1 << 20):
            self._stdout.write(chunk)
        self._stdout.flush()
        self._answer.seek(0)
        self._answer.truncate()

    def finish(self) -> None:
        """Prints the answer, then the notes. Raises BrokenPipeError."""
        self.flush()
        if self.json and self._notes:
            self._stderr.write(_encode(self._notes) + "\n")
        if not self.json:
            for remark in self._remarks:
                self._show_on_stderr(remark, style="dim")

    def fail(self, error: TroveError) -> None:
        """Drops the answer and prints the error with its remedy."""
        if self.json:
            self._stderr.write(_encode({**self._notes, **error_fields(error)}) + "\n")
            return
        self._show_on_stderr(f"✗ {error.symbol} ({error.spec.code}): {error.message}", style="bold red")
        self._show_on_stderr(f"  → {error.spec.what_to_do}")

    def close(self) -> None:
        """Frees the answer's memory or file."""
        self._answer.close()

    def usage(self, message: str, what_to_do: str) -> None:
        """Prints wrong usage as a JSON object."""
        spec = errors.REQUEST_ILLEGAL
        fields = error_fields(errors.TroveError(spec, message)) | {"whatToDo": what_to_do}
        self._stderr.write(_encode(fields) + "\n")

    def discard(self) -> None:
        """Drops the answer, and whatever Python would still flush into the broken pipe at exit."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stdout.fileno())

    def _show_on_stderr(self, text: str, style: str = "") -> None:
        from rich.text import Text

        from trovemq.cli.render import printable

        buffer = io.StringIO()
        console = self._console(buffer, terminal=self._stderr.isatty())
        text = "\n".join(printable(line) for line in text.split("\n"))  # a server's words among them
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
