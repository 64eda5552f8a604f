"""Small SVG charts. Colours and lines are those of the style sheet; no text comes from a message."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from markupsafe import Markup

from trovemq_console.rendering import duration_text

Point = tuple[float, float]
Text = Callable[[float], str]
PADDING: Final = 2.0
CHART_WIDTH: Final = 420
CHART_HEIGHT: Final = 64


def spark(points: Sequence[Point], label: str, text: Text, width: int = 120, height: int = 28) -> Markup:
    """A line over time beside a number in a table, with its range as title; a dash without points. `text`:
    of a value."""
    if len(points) < 2:
        return Markup('<span class="muted">—</span>')
    values = [value for _, value in points]
    ago = _ago(points)
    title = f"{label}: {text(min(values))} to {text(max(values))} since {ago}, {text(values[-1])} now"
    return _picture(points, title, width, height, max(values))


def chart(points: Sequence[Point], label: str, text: Text) -> Markup:
    """A line over time, with its axes: values at the left, time below, the newest value named."""
    top = ceiling(max((value for _, value in points), default=0.0))
    now = text(points[-1][1]) if points else "no value yet: one comes every 5 s"
    title = f"{label}: {now}" if not points else f"{label}: {now} now, at most {text(top)}"
    return Markup(
        '<figure class="plot"><div class="y" aria-hidden="true"><span>{top}</span><span>{half}</span>'
        '<span>0</span></div>{picture}<div class="x" aria-hidden="true"><span>{ago}</span>'
        "<span>now</span></div><figcaption>{now}</figcaption></figure>"
    ).format(
        top=text(top),
        half=text(top / 2),
        picture=_picture(points, title, CHART_WIDTH, CHART_HEIGHT, top),
        ago=_ago(points),
        now=now,
    )


def ceiling(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, … so that the half is a short number, too; 1 for 0."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(one * power for one in (1, 2, 5, 10) if one * power >= value * (1 - 1e-9))


def _ago(points: Sequence[Point]) -> str:
    """The time of the first point, before that of the last one."""
    return f"{duration_text((points[-1][0] - points[0][0]) * 1000)} ago" if len(points) > 1 else ""


def _picture(points: Sequence[Point], title: str, width: int, height: int, top: float) -> Markup:
    line = coordinates(points, width, height, top)
    line *= 2 if len(line) == 1 else 1  # so that it is seen as a dot
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
    area = f"{line[0][0]:.1f},{height} {text} {line[-1][0]:.1f},{height}" if line else ""
    # The numbers are made here; Markup's formatting escapes the title.
    return Markup(
        '<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'preserveAspectRatio="none" aria-label="{title}"><title>{title}</title>'
        '<polygon points="{area}"/><polyline points="{line}"/></svg>'
    ).format(width=width, height=height, title=title, area=area, line=text)


def coordinates(points: Sequence[Point], width: float, height: float, top: float) -> list[Point]:
    """The points in picture coordinates: time to the right, 0 at the bottom, `top` at the top. One alone is
    at the right, where now is."""
    begin, end = (points[0][0], points[-1][0]) if points else (0.0, 0.0)
    span = end - begin
    return [
        (
            PADDING + ((at - begin) / span if span else 1.0) * (width - 2 * PADDING),
            height - PADDING - min(max(value, 0.0) / (top or 1.0), 1.0) * (height - 2 * PADDING),
        )
        for at, value in points
    ]
