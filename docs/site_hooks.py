"""What `make docs-site` does to the pages: those of the root become pages of the site, and links follow.

The pages are written to be read in the repository. On the site a link to README.md leads to overview.md and
so on, and a link to a file that is not a page (a module, a folder) becomes its text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES_OF_ROOT: Final = {
    "README.md": "overview.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the pages of the root."""
    for source, page in PAGES_OF_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Every link as the site has it."""
    root_page = {name: source for source, name in PAGES_OF_ROOT.items()}.get(page.file.src_uri)
    source = ROOT / root_page if root_page else ROOT / "docs" / page.file.src_uri
    depth = page.file.src_uri.count("/")

    def as_on_the_site(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        place = (source.parent / target).resolve()
        name = place.relative_to(ROOT).as_posix() if place.is_relative_to(ROOT) else target
        site_page = PAGES_OF_ROOT.get(name, name.removeprefix("docs/"))
        if files.get_file_from_path(site_page) is None:
            return text
        return f"[{text}]({'../' * depth}{site_page}{anchor})"

    return _LINK.sub(as_on_the_site, markdown)
