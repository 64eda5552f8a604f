"""The lock files that `make lock` writes, and with which arguments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.project.test_tidy import relative, tracked_files
from tools.locks import COMPILE, Lock, locks

ROOT = Path(__file__).resolve().parents[3]
PROJECTS = sorted(
    relative(path)
    for path in tracked_files()
    if path.name == "pyproject.toml" and path.parent != ROOT  # the root has the workspace and no distribution
)


def written(uv: str | None = "0.9.1") -> dict[str, Lock]:
    return {lock.path: lock for lock in locks([str(ROOT / name) for name in PROJECTS], uv)}


def values(arguments: Sequence[str], option: str) -> set[str]:
    return {value for name, value in pairwise(arguments) if name == option}


def test_every_lock_file_is_written() -> None:
    committed = {relative(path) for path in tracked_files() if path.suffix == ".lock"}
    committed |= {relative(path) for path in (ROOT / "locks").iterdir()}
    assert set(written()) == committed


def test_the_makefile_names_every_project() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (packages,) = (line for line in text.splitlines() if line.startswith("PACKAGES := "))
    assert "PROJECTS := $(PACKAGES:%=%/pyproject.toml)" in text.splitlines()
    named = packages.removeprefix("PACKAGES := ").split()
    assert sorted(f"{name}/pyproject.toml" for name in named) == PROJECTS


def test_no_lock_file_has_our_own_distributions() -> None:
    parts = ("broker", "nameserver", "daemon", "proto", "store", "rpc", "console", "spark")
    ours = {"trovemq", *(f"trovemq-{part}" for part in parts)}
    for name in ("locks/dev.txt", "locks/run.txt"):
        assert ours <= values(written()[name].arguments(), "--no-emit-package")


def test_daemons_are_locked_without_spark_and_with_the_tested_versions() -> None:
    run = written()["locks/run.txt"]
    assert not any("pipeline" in source for source in run.sources)
    assert len(run.sources) == len(PROJECTS) - 1
    assert values(run.arguments(), "-c") == {"locks/dev.txt"}
    assert next(iter(written())) == "locks/dev.txt", "the others follow it"


@pytest.mark.parametrize(("kept", "wanted"), [("0.9.1", "uv==0.9.1"), (None, "uv")])
def test_uv_stays_where_no_upgrade_was_asked_for(kept: str | None, wanted: str) -> None:
    lock = written(kept)["locks/uv.txt"]
    assert lock.requirements == (wanted,)
    assert lock.arguments() == ("-", "-o", "locks/uv.txt")


def test_locks_are_for_each_system_with_hashes_and_without_hosts() -> None:
    assert {"--universal", "--generate-hashes", "--no-header"} <= set(COMPILE)
    assert not any(
        "index" in word or "find-links" in word for lock in written().values() for word in lock.arguments()
    )
