"""The command line's output at the end: the report as JSON, or one line about the error.

| exit code | means                                          | standard output |
|-----------|------------------------------------------------|-----------------|
| 0         | done                                           | the report      |
| 1         | done, and the report has findings              | the report      |
| 2         | wrong usage                                    | nothing         |
| 3         | failed                                         | nothing         |
| 130, 143  | stopped by Ctrl-C, by SIGTERM                  | nothing         |

An error in a Spark task reaches the driver as text: our own line is in Python's traceback, which is in
Java's. `failure_line` finds that line.
"""

from __future__ import annotations

import errno
import json
import os
import re
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_spark.java import JavaMissingError
from trovemq_spark.job import Report

EXIT_DONE: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_USAGE: Final = 2
EXIT_FAILURE: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

_OURS: Final = re.compile(r"TroveError: ([A-Z][A-Z0-9_]+) \(E?(\d+)\): ([^\n]*)")
_PYTHON_LINE: Final = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)(?:: .*)?$", re.MULTILINE
)
_DISK_FULL: Final = ("No space left on device", "Disk quota exceeded")
_LINE_MAX: Final = 2000

_ADVICE: Final = {
    # The remedies in the table of errors are for users and operators of a broker.
    errors.DISK_FULL.symbol: "Free space, then run the job again: it continues where it stopped.",
    errors.STORE_FAILED.symbol: "Check the path, its owner and its disk; jobs only read a store.",
    errors.STORE_SETTINGS_MISMATCH.symbol: "Set the sizes as the message says.",
    errors.ARCHIVE_ILLEGAL.symbol: "`trovemq-pipeline archive` makes one, also again where it is damaged.",
}
_PATH_ADVICE: Final = "Check the path and who may write to it, or name another."


def exit_code(report: Report) -> int:
    return EXIT_FINDINGS if report.finding_count else EXIT_DONE


def report_text(report: Report, *, terminal: bool) -> str:
    """One JSON object, ASCII only; on a terminal on several lines."""
    return json.dumps(report.to_json(), indent=2 if terminal else None, default=str) + "\n"


def error_of(failure: BaseException) -> TroveError:
    """The TroveError of a failure: the failure itself, its cause, or the one in its text; else UNKNOWN_ERROR
    with one line of text."""
    for error in _chain(failure):
        if isinstance(error, TroveError):
            return error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _disk_full(str(error))
    if isinstance(failure, OSError) and failure.filename and failure.strerror:
        what = f"{_path_text(failure)}: {failure.strerror}. {_PATH_ADVICE}"
        return TroveError(errors.UNKNOWN_ERROR, what)
    text = str(failure)
    if found := list(_OURS.finditer(text)):
        return TroveError(_spec(found[-1][1]), found[-1][3].strip())
    if any(words in text for words in _DISK_FULL):
        return _disk_full(_last_python_line(text) or text)
    if isinstance(failure, JavaMissingError):
        return TroveError(errors.UNKNOWN_ERROR, text)
    if "JAVA_GATEWAY_EXITED" in text:
        return TroveError(
            errors.UNKNOWN_ERROR, "Spark's Java did not start; --debug shows its output. Is there memory?"
        )
    known = _last_python_line(text) or _first_line(text)
    return TroveError(errors.UNKNOWN_ERROR, known if _is_wrapper(failure) else _named(failure, known))


def failure_line(failure: BaseException) -> str:
    """One line: the error, and its remedy."""
    error = error_of(failure)
    line = " ".join(error.message.split())
    if len(line) > _LINE_MAX:
        line = line[:_LINE_MAX] + "…"
    if error.spec is errors.UNKNOWN_ERROR:
        return f"error: {line}"
    advice = _ADVICE.get(error.symbol, error.spec.what_to_do)
    return f"error: {error.symbol} ({error.spec.number}): {line} → {advice}"


def is_usage(failure: BaseException) -> bool:
    """Whether the caller's options, or an address, are wrong."""
    if not isinstance(failure, TroveError):
        return False
    return failure.spec is errors.OPTION_ILLEGAL or (
        failure.spec is errors.REQUEST_ILLEGAL and "server" in failure.fields
    )


def _chain(failure: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    error: BaseException | None = failure
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _spec(symbol: str) -> ErrorSpec:
    try:
        return errors.by_symbol(symbol)
    except KeyError:
        return errors.UNKNOWN_ERROR


def _disk_full(text: str) -> TroveError:
    what = f"the disk has no space: {_first_line(text)}. Half-written files are not visible"
    return TroveError(errors.DISK_FULL, what)


def _path_text(failure: OSError) -> str:
    name = failure.filename
    return os.fsdecode(name) if isinstance(name, (bytes, str)) else str(name)


def _last_python_line(text: str) -> str:
    """The line under the last traceback: `ValueError: what`."""
    lines = _PYTHON_LINE.findall(text) if "Traceback (most recent call last)" in text else []
    return lines[-1].strip() if lines else ""


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason is given")


def _is_wrapper(failure: BaseException) -> bool:
    return type(failure).__module__.startswith(("pyspark", "py4j"))


def _named(failure: BaseException, text: str) -> str:
    return f"{type(failure).__name__}: {text}"
