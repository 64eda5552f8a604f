"""Where a comment names a page and a section of it, the page has that section.

The form is `docs/PAGE.md, "Section"`; it may be broken over two lines.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.unit.project.test_tidy import relative, text_of, tracked_files

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = re.compile(r"\b(docs/[\w/-]+\.md),[\s#/]+\"([^\"]+)\"")
LINK = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")


def headings(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)


@cache
def anchors(page: str) -> set[str]:
    return set(map(anchor, headings(page)))


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sources() -> list[Path]:
    return [path for path in tracked_files() if path.suffix in (".py", ".proto") and path != Path(__file__)]


def references() -> list[tuple[str, str, str]]:
    return [
        (relative(path), page, section)
        for path in sources()
        for page, section in REFERENCE.findall(text_of(path) or "")
    ]


def test_every_section_that_a_comment_names_is_there() -> None:
    found = references()
    assert len(found) > 20
    pages = {page: headings(page) for _, page, _ in found}
    assert [one for one in found if one[2] not in pages[one[1]]] == []


def test_no_comment_cites_a_document_that_is_not_here() -> None:
    cited = {relative(path): re.findall(r"\bspec \d[\d.]*", text_of(path) or "") for path in sources()}
    assert {name: found for name, found in cited.items() if found} == {}


def test_links_to_a_section_lead_to_one() -> None:
    pages = [path for path in tracked_files() if path.suffix == ".md"]
    assert len(pages) > 50
    assert {relative(page): wrong for page in pages if (wrong := wrong_links(page))} == {}


def wrong_links(page: Path) -> list[str]:
    wrong = []
    for target, section in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        if path.suffix == ".md" and section not in anchors(relative(path)):
            wrong.append(f"{target}#{section}")
    return wrong
