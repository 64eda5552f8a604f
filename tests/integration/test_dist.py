"""The files of `make dist`: the same bytes in another directory, files of the tree only, hashes that fit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.integration.test_wheels import PACKAGES
from tests.unit.project.test_tidy import relative, tracked_files
from tools import dist
from tools.locks import name_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release, built in this tree."""
    folder = tmp_path_factory.mktemp("dist") / "dist"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
        dist.build(folder, PACKAGES)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_builds_give_the_same_bytes(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second in another directory, of files with other times and rights."""
    tree = tmp_path / "elsewhere"
    for path in tracked_files():
        if relative(path).startswith((*(f"{name}/" for name in PACKAGES), "locks/")):
            copy = tree / relative(path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            copy.chmod(0o600)
            os.utime(copy, (EPOCH + 5, EPOCH + 5))
    subprocess.run(["git", "init", "--quiet", tree], check=True)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    dist.build(tmp_path / "dist", PACKAGES, tree)
    first, second = contents(built), contents(tmp_path / "dist")
    assert len(first) == 2 * len(PACKAGES) + 3
    assert {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)} == set()


def test_a_source_distribution_gives_the_same_wheel(built: Path, tmp_path: Path) -> None:
    tracked = {relative(path) for path in tracked_files()}
    for project, archive in zip(PACKAGES, sorted_as_projects(built), strict=True):
        with tarfile.open(archive) as sources:
            assert {member.mtime for member in sources} == {EPOCH}
            names = {member.name.partition("/")[2] for member in sources if member.isfile()}
            assert {f"{project}/{name}" for name in names - {"PKG-INFO", ".gitignore"}} <= tracked
            sources.extractall(tmp_path, filter="data")
    (archive,) = built.glob("trovemq_proto-*.tar.gz")
    folder = tmp_path / archive.name.removesuffix(".tar.gz")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("trovemq_proto-*.whl")
    assert wheel.read_bytes() == (built / wheel.name).read_bytes()


def sorted_as_projects(built: Path) -> list[Path]:
    """The source distributions, in the order of PACKAGES."""
    names = {
        project: name_of(str(ROOT / project / "pyproject.toml")).replace("-", "_") for project in PACKAGES
    }
    return [next(built.glob(f"{names[project]}-[0-9]*.tar.gz")) for project in PACKAGES]


def test_sums_requirements_and_bill_have_the_hashes_of_what_was_built(built: Path) -> None:
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", dist.SUMS], cwd=built, check=True, capture_output=True, text=True
    )
    assert checked.stdout.count(": OK\n") == 2 * len(PACKAGES) + 2
    bill = json.loads((built / dist.BILL).read_text())
    components = [bill["metadata"]["component"], *bill["components"]]
    hashes = {one["content"] for component in components for one in component.get("hashes", ())}
    requirements = (built / dist.REQUIREMENTS).read_text()
    for path in built.iterdir():
        if path.suffix in (".whl", ".gz"):
            assert dist.sha256(path) in hashes, path.name
        if path.suffix == ".whl" and not path.name.startswith("trovemq_spark-"):
            assert f"--hash=sha256:{dist.sha256(path)}\n" in requirements
    assert "numpy==" in requirements
    for name in (dist.BILL, dist.REQUIREMENTS):
        assert "://" not in (built / name).read_text()


def test_a_build_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dist.main([str(tmp_path / "dist"), "tests"]) == 1
    assert "returned non-zero exit status" in capsys.readouterr().err
