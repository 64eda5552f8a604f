"""The API reference has every public name of the SDK, and the site has every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import getdoc, isclass
from pathlib import Path

import yaml

import trovemq

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
NAMED = [
    name
    for page in sorted((DOCS / "api").glob("*.md"))
    for name in re.findall(r"^::: trovemq\.(\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def test_every_public_name_of_the_sdk_stands_there_once() -> None:
    assert len(NAMED) == len(set(NAMED))
    assert set(trovemq.__all__) <= set(NAMED)


def test_every_name_of_the_reference_exists() -> None:
    modules = {"testing", "taskiq", "celery", "otel"}
    for name in NAMED:
        module, _, member = name.rpartition(".")
        holder = import_module(f"trovemq.{module}" if module else "trovemq")
        assert name in modules or getattr(holder, member).__doc__, name


def documented(name: str) -> Iterator[str]:
    """The docstrings of a public name and of its public members."""
    named = getattr(trovemq, name)
    members = (
        [member for own, member in vars(named).items() if not own.startswith("_")] if isclass(named) else []
    )
    yield from filter(None, map(getdoc, (named, *members)))


def test_every_entry_of_a_docstrings_table_is_a_name_and_what_it_means() -> None:
    """A line that continues is indented: else the reference shows it as a separate entry."""
    wrong = [
        line
        for name in trovemq.__all__
        for text in documented(name)
        for table in re.findall(r"^(?:Args|Attributes):\n((?: .*\n?|\n)+)", text, re.MULTILINE)
        for line in re.findall(r"^ {4}\S.*$", table, re.MULTILINE)
        if not re.match(r" {4}[\w*]+: ", line)
    ]
    assert wrong == []


def test_the_site_has_every_page_of_the_folder() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = [
        page
        for entry in navigation
        for page in ([entry] if isinstance(entry, str) else next(iter(entry.values())))
    ]
    assert len(listed) == len(set(listed))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert set(listed) == pages | {"overview.md", "architecture.md", "contributing.md"}
