"""News fragments have names that `make news` knows, and it collects them into the change log."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFIGURED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
KINDS = {kind["directory"]: kind["name"] for kind in CONFIGURED["type"]}
NAME = re.compile(rf"\+[a-z0-9-]+\.({'|'.join(KINDS)})(\.\d+)?\.md")


def fault(name: str, text: str) -> str | None:
    """The reason why it is no fragment; None: it is one."""
    if not NAME.fullmatch(name):
        return f"{name}: not +SUBJECT.KIND.md, with one of {', '.join(KINDS)}"
    if not text.strip() or text.lstrip().startswith(("-", "*", "#")):
        return f"{name}: sentences, without a bullet and a heading"
    return None


def test_every_fragment_is_collected() -> None:
    fragments = [path for path in (ROOT / "news").iterdir() if path.name != "README.md"]
    assert [said for path in fragments if (said := fault(path.name, path.read_text(encoding="utf-8")))] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("clock-steps.fix.md", "Text."),  # the part before the kind would be shown as a number of an issue
        ("+clock-steps.bugfix.md", "Text."),
        ("+clock-steps.fix", "Text."),
        ("+clock-steps.fix.md", "- Text."),
        ("+clock-steps.fix.md", "\n"),
    ],
)
def test_a_fragment_that_would_be_lost_or_misprinted_is_found(name: str, text: str) -> None:
    assert fault(name, text)
    assert fault("+clock-steps.fix.1.md", "Text.") is None


def test_the_page_about_fragments_has_every_kind() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "news/README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == list(KINDS)


def test_a_release_has_its_news_above_those_before_it(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    news = tmp_path / "news"
    news.mkdir()
    shutil.copy(ROOT / "news/README.md", news)
    for kind in KINDS:
        (news / f"+subject.{kind}.md").write_text(f"News of {kind}.\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "towncrier",
        "build",
        "--yes",
        "--version",
        "99.0.0",
        "--date",
        "2099-01-02",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    before = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    after = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    head, marker, rest = before.partition("<!-- towncrier release notes start -->\n")
    assert marker
    assert after.startswith(head + marker)
    assert after.endswith(rest.lstrip())
    added = after.removeprefix(head + marker).removesuffix(rest.lstrip()).split("\n")
    wanted = [line for kind, name in KINDS.items() for line in (f"### {name}", f"- News of {kind}.")]
    assert [line for line in added if line] == ["## 99.0.0, 2099-01-02", *wanted]
    assert [path.name for path in news.iterdir()] == ["README.md"]
