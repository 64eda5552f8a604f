"""Logging: one structured line per event on standard error, as text or JSON.

- An event has a short dotted name (`store.opened`); everything that varies is a field.
- Each event name may have `LINES_MAX` lines in `WINDOW_S` seconds; the next line then has `suppressed=N`. So
  a misbehaving client cannot fill a disk.
- Control characters are escaped and long values cut: a client's text cannot forge a line. Bodies are never
  logged; of bytes the length is logged.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final, Literal, TextIO, cast

import structlog

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
Fields = MutableMapping[str, Any]

LINES_MAX: Final = 20
WINDOW_S: Final = 10.0
EVENT_NAMES_MAX: Final = 1_000
VALUE_LENGTH_MAX: Final = 1_024
TRACEBACK_LENGTH_MAX: Final = 16_384

_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A, 0x0D)
} | {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}
_CONTROLS |= {  # line ends of Unicode, and characters that change the direction of later text
    code: f"\\u{code:04x}"
    for code in (0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


class RateLimiter:
    """Drops events of a name beyond `lines_max` in each window, and counts them."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        lines_max: int = LINES_MAX,
        window_s: float = WINDOW_S,
    ) -> None:
        self._clock = clock
        self._lines_max = lines_max
        self._window_s = window_s
        self._windows: dict[str, tuple[float, int]] = {}  # event -> (start, lines seen)

    def __call__(self, _logger: object, _method: str, fields: Fields) -> Fields:
        name = str(fields.get("event", ""))[:VALUE_LENGTH_MAX]
        now = self._clock()
        if len(self._windows) >= EVENT_NAMES_MAX and name not in self._windows:
            self._windows.clear()
        start, seen = self._windows.get(name, (now, 0))
        if now - start >= self._window_s:
            if seen > self._lines_max:
                fields["suppressed"] = seen - self._lines_max
            start, seen = now, 0
        self._windows[name] = (start, seen + 1)
        if seen >= self._lines_max:
            raise structlog.DropEvent
        return fields


def _shown(value: object, length_max: int) -> object:
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    text = str(value)
    return text if len(text) <= length_max else f"{text[:length_max]}…(+{len(text) - length_max})"


def shorten_values(_logger: object, _method: str, fields: Fields) -> Fields:
    for name, value in fields.items():
        fields[name] = _shown(value, TRACEBACK_LENGTH_MAX if name == "exception" else VALUE_LENGTH_MAX)
    return fields


def escape(text: str) -> str:
    """The text on one line, without characters that a terminal would interpret."""
    return text.translate(_CONTROLS)


def _text_value(value: object) -> str:
    text = str(value)
    if text and not any(character in text for character in ' ="\\'):
        return escape(text)
    return '"' + escape(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def render_text(_logger: object, _method: str, fields: Fields) -> str:
    """`2026-01-02T03:04:05.678Z info  store.opened messages=12`"""
    head = f"{fields.pop('timestamp')} {fields.pop('level'):<7} {escape(str(fields.pop('event')))}"
    return " ".join([head, *(f"{escape(name)}={_text_value(value)}" for name, value in fields.items())])


def render_json(_logger: object, _method: str, fields: Fields) -> str:
    head = {name: fields.pop(name) for name in ("timestamp", "level", "event")}
    return json.dumps({**head, **fields}, ensure_ascii=True)


class _ForwardToStructlog(logging.Handler):
    """Logs warnings of libraries (uvicorn, asyncio, grpc) in the format of the daemon's log."""

    def emit(self, record: logging.LogRecord) -> None:
        log = get_logger()
        write = log.error if record.levelno >= logging.ERROR else log.warning
        write(f"library.{record.name}", message=record.getMessage(), exc_info=record.exc_info)


def configure_logging(
    level: LogLevel = "info",
    log_format: LogFormat = "text",
    *,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Sets up structlog for the process; call once at start. `stream` defaults to standard error."""
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        RateLimiter(clock),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
        structlog.processors.format_exc_info,
        shorten_values,
        render_json if log_format == "json" else render_text,
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=stream or sys.stderr),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_ForwardToStructlog()]
    root.setLevel(logging.WARNING)


def set_log_level(level: LogLevel) -> None:
    """Sets the least severe level that is logged from now on."""
    wrapper_class = structlog.make_filtering_bound_logger(getattr(logging, level.upper()))
    structlog.configure(**{**structlog.get_config(), "wrapper_class": wrapper_class})


Logger = structlog.typing.FilteringBoundLogger


def get_logger(**fields: object) -> Logger:
    """A logger with fields that each of its lines has: `log.info("store.opened", messages=12)`."""
    return cast("Logger", structlog.get_logger(**fields))
