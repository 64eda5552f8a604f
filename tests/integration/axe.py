"""axe-core, which finds barriers in a page: from npm's registry, once, checked by its hash.

It is a tool of the tests alone (MPL 2.0), so it is no part of the repository. Without npm, or where the
registry cannot be reached, tests that need it are skipped by name.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from tests.support.chromium import Page

VERSION = "4.10.3"
SHA256 = "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292"
FOLDER = Path(__file__).resolve().parents[2] / "build"
PACK_SECONDS_MAX = 60


def axe_script() -> str | None:
    """The script; None where it is not to be had. Raises AssertionError where it is not the known one."""
    package = FOLDER / f"axe-core-{VERSION}.tgz"
    npm = shutil.which("npm")
    if not package.exists() and npm is not None:
        FOLDER.mkdir(exist_ok=True)
        command = [npm, "pack", "--silent", f"axe-core@{VERSION}", "--pack-destination", str(FOLDER)]
        try:
            subprocess.run(command, capture_output=True, timeout=PACK_SECONDS_MAX, check=True)
        except (subprocess.SubprocessError, OSError):
            return None
    if not package.exists():
        return None
    assert hashlib.sha256(package.read_bytes()).hexdigest() == SHA256, package
    with tarfile.open(package) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def barriers(browser: Page, script: str) -> list[str]:
    """Violations on the page that the browser shows: rule, impact and place of each."""
    browser.run(script)
    asked = "axe.run(document).then(found => JSON.stringify(found.violations))"
    violations: list[dict[str, Any]] = json.loads(browser.run(asked))
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:160]}"
        for rule in violations
        for node in rule["nodes"]
    ]
