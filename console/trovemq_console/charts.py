"""Small SVG charts. Colours and lines are those of the style sheet; no text comes from a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

Point = tuple[float, float]
PADDING: Final = 2.0


def spark(
    points: Sequence[Point],
    label: str,
    width: int = 120,
    height: int = 28,
    *,
    before: str = "from the second look on",
) -> Markup:
    """A line over time with the area below it; a flat line at the bottom if all values are zero. before: the
    text until there are two points."""
    if len(points) < 2:
        return Markup('<span class="muted">{}</span>').format(before)
    line = coordinates(points, width, height)
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
    area = f"{line[0][0]:.1f},{height} {text} {line[-1][0]:.1f},{height}"
    # The numbers are made here; Markup's formatting escapes the label.
    return Markup(
        '<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'preserveAspectRatio="none" aria-label="{label}"><title>{label}</title>'
        '<polygon points="{area}"/><polyline points="{line}"/></svg>'
    ).format(width=width, height=height, label=label, area=area, line=text)


def coordinates(points: Sequence[Point], width: float, height: float) -> list[Point]:
    """The points in picture coordinates: time to the right, 0 at the bottom."""
    begin, end = points[0][0], points[-1][0]
    top = max(value for _, value in points) or 1.0
    span = (end - begin) or 1.0
    return [
        (
            PADDING + (at - begin) / span * (width - 2 * PADDING),
            height - PADDING - max(value, 0.0) / top * (height - 2 * PADDING),
        )
        for at, value in points
    ]
