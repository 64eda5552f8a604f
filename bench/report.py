"""The results of a run: figures with their goals, as a table, as JSON, and as a page of docs/."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

PAGE_HEAD = (
    "# Benchmarks\n\n"
    "Written by `make bench ARGS='--markdown docs/reports/benchmarks.md'`: each section is one run,\n"
    "client and broker on the same processors. On a machine that others use as well, compare only figures\n"
    "of the same run.\n"
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: a value, and the goal that it has to reach (`at_least` or `at_most`), if it has one. A row
    that could not be measured has the reason instead of a value."""

    name: str
    value: float | None
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    reason: str = ""

    @property
    def reached(self) -> bool | None:
        if self.value is None:
            return None
        if self.at_least is not None:
            return self.value >= self.at_least
        if self.at_most is not None:
            return self.value <= self.at_most
        return None


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the rounds' ratios, so that a machine whose speed drifts says the same of both."""
    return median(one / other for one, other in zip(over, under, strict=True))


@dataclass(slots=True)
class Report:
    """The figures of one part of the benchmark. about: how they were measured; notes: parts that could not be
    measured."""

    title: str
    about: str = ""
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        self.figures.append(Figure(name, value, unit, at_least, at_most))

    def not_shown(
        self,
        name: str,
        unit: str,
        reason: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """A row without a value."""
        self.figures.append(Figure(name, None, unit, at_least, at_most, reason))

    def add_latency(self, name: str, times: Sequence[float], p99_max_ms: float | None = None) -> None:
        """Median and p99 of times in seconds, as ms."""
        self.add(f"{name}: median", median(times) * 1e3, "ms")
        p99 = quantiles(times, n=100)[98] * 1e3
        if p99_max_ms is None:
            self.add(f"{name}: p99", p99, "ms")
        else:
            self.add(f"{name}: p99", p99, "ms", at_most=p99_max_ms)

    def value(self, name: str) -> float:
        """Of a row that was measured."""
        return next(
            figure.value for figure in self.figures if figure.name == name and figure.value is not None
        )

    @property
    def missed(self) -> list[str]:
        return [figure.name for figure in self.figures if figure.reached is False]


def machine() -> dict[str, object]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False
    )
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "commit": commit.stdout.strip(),
    }


def cells(figure: Figure) -> tuple[str, str, str, str, str]:
    """A figure as text: name, value, unit, goal, verdict or the reason why there is none."""
    goal = ""
    if figure.at_least is not None:
        goal = f">= {rounded(figure.at_least)}"
    elif figure.at_most is not None:
        goal = f"<= {rounded(figure.at_most)}"
    if figure.value is None:
        return figure.name, "not shown", figure.unit, goal, figure.reason
    verdict = {True: "reached", False: "missed", None: ""}[figure.reached]
    return figure.name, rounded(figure.value), figure.unit, goal, verdict


def rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"


def print_table(reports: Sequence[Report]) -> None:
    table = Table("what", "value", "unit", "goal", "")
    for report in reports:
        table.add_section()
        for figure in report.figures:
            table.add_row(*cells(figure), style="bold" if figure.reached is False else None)
    Console(width=120).print(table)
    for report in reports:
        for note in report.notes:
            print(f"{report.title}: {note}")


def write_json(path: Path, reports: Sequence[Report]) -> None:
    figures = [
        {**asdict(figure), "reached": figure.reached} for report in reports for figure in report.figures
    ]
    notes = [note for report in reports for note in report.notes]
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine(), "figures": figures, "notes": notes}
    path.write_text(json.dumps(found, indent=2) + "\n")


def write_markdown(path: Path, reports: Sequence[Report]) -> None:
    """Each part is a section of the page; the sections of parts that did not run stay as they are."""
    text = path.read_text() if path.exists() else ""
    sections = {part.partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}
    for report in reports:
        sections[report.title] = section(report)
    path.write_text(PAGE_HEAD + "".join(f"\n## {part.rstrip()}\n" for part in sections.values()))


def section(report: Report) -> str:
    """A part's table with the machine and the commit that it was made on (`+`: with changes)."""
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    rows = "\n".join("| " + " | ".join(cells(figure)) + " |" for figure in report.figures)
    notes = "".join(f"\n- {note}" for note in report.notes)
    return (
        f"{report.title}\n\n"
        f"Machine: {facts}.\n\n"
        f"{report.about}"
        "| what | value | unit | goal | |\n| --- | ---: | --- | --- | --- |\n"
        f"{rows}\n" + (f"{notes}\n" if notes else "")
    )
