"""The API reference has every public name of the SDK, and the site has every page."""

from __future__ import annotations

import re
from importlib import import_module
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
    modules = {"testing": "trovemq.testing"}
    for name in NAMED:
        module, _, member = name.rpartition(".")
        holder = import_module(f"trovemq.{module}" if module else "trovemq")
        assert name in modules or getattr(holder, member).__doc__, name


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
