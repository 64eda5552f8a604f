"""The page of figures: a part that is measured again replaces its own section only."""

from __future__ import annotations

import json
from pathlib import Path

from bench.report import Report, write_json, write_markdown


def report(title: str, value: float) -> Report:
    made = Report(title, "How it was done.\n\n")
    made.add("rate", value, "msg/s", at_least=100.0)
    made.add("p99", value, "ms", at_most=100.0)
    return made


def test_a_part_that_runs_alone_leaves_the_other_sections_as_they_are(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_markdown(page, [report("One", 1.0), report("Two", 2.0)])
    first = page.read_text().partition("\n## Two\n")[0]
    write_markdown(page, [report("Two", 300.0)])
    text = page.read_text()
    assert text.startswith(first)
    assert text.count("\n## ") == 2
    assert "| rate | 300 | msg/s | >= 100 | reached |" in text
    assert "| p99 | 300 | ms | <= 100 | missed |" in text
    assert "| rate | 2 |" not in text


def test_figures_and_notes_are_written_as_json(tmp_path: Path) -> None:
    made = report("One", 1.0)
    made.notes.append("no java")
    write_json(tmp_path / "build" / "bench.json", [made])
    found = json.loads((tmp_path / "build" / "bench.json").read_text())
    assert [figure["reached"] for figure in found["figures"]] == [False, True]
    assert found["notes"] == ["no java"]
    assert made.missed == ["rate"]


def test_a_row_that_could_not_be_measured_says_why(tmp_path: Path) -> None:
    made = Report("Two")
    made.not_shown("rate to the proxy", "x", "no Java", at_least=1.0)
    made.add("rate", 5.0, "msg/s", at_least=1.0)
    write_json(tmp_path / "bench.json", [made])
    write_markdown(tmp_path / "page.md", [made])
    assert "| rate to the proxy | not shown | x | >= 1 | no Java |" in (tmp_path / "page.md").read_text()
    figures = json.loads((tmp_path / "bench.json").read_text())["figures"]
    assert [(figure["value"], figure["reached"]) for figure in figures] == [(None, None), (5.0, True)]
    assert made.missed == []
    assert made.value("rate") == 5.0
