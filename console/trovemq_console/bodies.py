"""Views of a body: JSON with line breaks, text, hex. Each shows a limited part; text is never markup.

The JSON view changes only white space between tokens: numbers, escapes and repeated names stay as they were
sent.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Final

TEXT_BYTES_MAX: Final = 64 << 10
JSON_BYTES_MAX: Final = 512 << 10
JSON_SHOWN_MAX: Final = 128 << 10
HEX_BYTES: Final = 4 << 10
HEX_ROW: Final = 16
PREVIEW_CHARACTERS: Final = 96
VIEWS: Final = ("json", "text", "hex")
_KEPT: Final = frozenset("\n\t")
_DEPTH_MAX: Final = 200
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class BodyView:
    """A part of a body as text.

    Attributes:
        name: `json`, `text` or `hex`.
        text: The part.
        begin: Its first byte, and `end` the one after its last; `json` shows the whole body.
        size: Bytes of the whole body.
        note: Why it is not shown as requested; "" for none.
    """

    name: str
    text: str
    begin: int
    end: int
    size: int
    note: str = ""

    @property
    def before(self) -> int | None:
        """Where the previous part begins; None if there is none."""
        return max(self.begin - part_size(self.name), 0) if self.begin else None

    @property
    def after(self) -> int | None:
        """Where the next part begins; None if there is none."""
        return self.end if self.end < self.size else None


def part_size(view: str) -> int:
    """Bytes of one part."""
    return HEX_BYTES if view == "hex" else TEXT_BYTES_MAX


def body_view(body: bytes, wanted: str = "", begin: int = 0) -> BodyView:
    """The requested view, or the one that suits the body."""
    begin = min(max(begin, 0), max(len(body) - 1, 0))
    if wanted == "hex" or (wanted not in VIEWS and not is_text(body)):
        return _hex(body, begin)
    if wanted != "text":
        shown, note = _json(body)
        if shown is not None:
            cut = shown[:JSON_SHOWN_MAX]
            return BodyView(
                "json", cut, 0, len(body), len(body), "" if cut == shown else "the beginning only"
            )
        if wanted == "json":
            return _text(body, begin, note)
    return _text(body, begin)


def is_text(body: bytes) -> bool:
    """Whether its beginning is UTF-8 without control characters."""
    head = body[:1024]
    try:
        text = head.decode("utf-8", "strict" if len(head) == len(body) else "ignore")
    except UnicodeDecodeError:
        return False
    return not any(unicodedata.category(c) == "Cc" and c not in "\n\t\r" for c in text)


def visible(text: str) -> str:
    """The text with control and direction characters as escapes: nothing is hidden, and no line changes its
    direction."""
    if text.isprintable():
        return text
    return "".join(c if c in _KEPT or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def preview(body: bytes) -> str:
    """The beginning on one line."""
    if not is_text(body):
        head = body[: PREVIEW_CHARACTERS // 3].hex(" ")
        return f"{head} …" if len(body) > PREVIEW_CHARACTERS // 3 else head
    text = " ".join(body[: 4 * PREVIEW_CHARACTERS].decode("utf-8", "ignore").split())
    shown = visible(text)
    whole = len(shown) <= PREVIEW_CHARACTERS and len(body) <= 4 * PREVIEW_CHARACTERS
    return shown if whole else f"{shown[:PREVIEW_CHARACTERS]}…"


def _text(body: bytes, begin: int, note: str = "") -> BodyView:
    part = body[begin : begin + TEXT_BYTES_MAX]
    return BodyView(
        "text", visible(part.decode("utf-8", "replace")), begin, begin + len(part), len(body), note
    )


def _hex(body: bytes, begin: int) -> BodyView:
    part = body[begin : begin + HEX_BYTES]
    rows = []
    for at in range(0, len(part), HEX_ROW):
        row = part[at : at + HEX_ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        rows.append(f"{begin + at:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {letters}")
    return BodyView("hex", "\n".join(rows), begin, begin + len(part), len(body))


def _json(body: bytes) -> tuple[str | None, str]:
    """The body with line breaks; or None, and the reason."""
    if len(body) > JSON_BYTES_MAX:
        return None, f"larger than {JSON_BYTES_MAX >> 10} KiB: shown as text"
    if body.lstrip()[:1] not in (b"{", b"["):
        return None, "not a JSON object or array: shown as text"
    try:
        text = body.decode("utf-8")
        json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, f"not JSON: {visible(str(error))[:120]}"
    return visible(indented(text)), ""


def indented(text: str) -> str:
    """JSON's tokens unchanged, one member per line, slightly more than is shown. The text must be JSON."""
    out: list[str] = []
    size = depth = 0
    before = ""
    for part in (match[0] for match in _TOKEN.finditer(text)):
        depth += (part in ("{", "[")) - (part in ("}", "]"))
        opens, closes = before in ("{", "["), part in ("}", "]")
        if before == "," or (opens and not closes) or (closes and not opens):
            out.append("\n" + "  " * min(depth - (part in ("{", "[")), _DEPTH_MAX))
        out.append(": " if part == ":" else part)
        size += len(out[-1]) + 2 * depth
        if size > 2 * JSON_SHOWN_MAX:
            break
        before = part
    return "".join(out)
