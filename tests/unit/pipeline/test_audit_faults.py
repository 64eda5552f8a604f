"""The audit names each planted fault by file and offset, and says nothing of stores that have none."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.golden import GOLDEN_NAMES, unpack
from tests.support.own_store import own_store
from tests.support.store_faults import FAULTS, OWN_FAULTS, DamagedStore
from trovemq_proto.errors import TroveError
from trovemq_spark.job import NoProgress, Report
from trovemq_spark.jobs.audit import AuditArguments, audit
from trovemq_spark.tasks import OneProcess
from trovemq_store.check.findings import Finding, Findings
from trovemq_store.check.store_view import StoreView
from trovemq_store.check.verify import verify
from trovemq_store.engine.opening import ABORT_PATH
from trovemq_store.log.segments import DIRECTORY as LOG_DIRECTORY

pytestmark = pytest.mark.slow


def audited(root: Path) -> Report:
    return audit(OneProcess(NoProgress()), AuditArguments(str(root)))


def named(report: Report) -> set[tuple[str, str, int]]:
    return {(finding.kind, finding.file, finding.offset) for finding in report.findings}


def check_nothing_missed(root: Path, report: Report) -> None:
    """The audit reports the findings of the broker's own tool at the same places."""
    found: list[Finding] = []
    try:
        view = StoreView.open(root)
    except TroveError:
        return  # it refuses the store as a whole
    verify(view, Findings(found.append))
    places = {(finding.file, finding.offset) for finding in report.findings}
    files = {file for file, _ in places}
    for finding in found:
        record = re.fullmatch(r"record (\d+) has keys without an item", finding.what)
        if finding.note:
            continue
        if record is not None:  # the audit names the record itself
            assert _log_place(root, int(record[1])) in places
        elif finding.file.count("/") == 2 and finding.file.startswith("consumequeue/"):
            # Of a queue as a whole: the audit may name the file of it.
            assert any(f"{file}/".startswith(f"{finding.file}/") for file in files), finding
        else:
            assert (finding.file, finding.offset) in places


def _log_place(root: Path, physical_offset: int) -> tuple[str, int]:
    names = sorted(path.name for path in (root / LOG_DIRECTORY).iterdir())
    name = max(name for name in names if int(name) <= physical_offset)
    return f"{LOG_DIRECTORY}/{name}", physical_offset - int(name)


@pytest.fixture(scope="module")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("rollover", tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_store(tmp_path_factory.mktemp("own") / "store")


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_by_file_and_offset(name: str, golden_store: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(golden_store, root, ignore=shutil.ignore_patterns("timerwheel"))
    expected = FAULTS[name](DamagedStore(root))
    report = audited(root)
    assert expected in named(report)
    check_nothing_missed(root, report)


@pytest.mark.parametrize("name", OWN_FAULTS)
def test_a_fault_in_a_store_of_our_own_is_named(name: str, generated: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(generated, root, ignore=shutil.ignore_patterns("timerwheel"))
    expected = OWN_FAULTS[name](DamagedStore(root))
    report = audited(root)
    assert expected in named(report)
    check_nothing_missed(root, report)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_stores_have_no_findings(name: str, tmp_path: Path) -> None:
    report = audited(unpack(name, tmp_path))
    assert report.findings == []
    assert report.finding_count == 0


def test_a_store_of_our_own_has_no_findings(generated: Path) -> None:
    report = audited(generated)
    assert report.findings == []
    assert report.facts["shutdown"] == "clean"
    assert int(str(report.facts["commitLogMinOffset"])) > 0, "its beginning was trimmed"
    assert int(str(report.facts["recordsOfDeletedTopics"])) > 0


def test_a_store_that_was_not_closed_may_be_open(generated: Path, tmp_path: Path) -> None:
    """It was called killed, also while its broker ran."""
    root = tmp_path / "copy"
    shutil.copytree(generated, root)
    (root / ABORT_PATH).touch()
    assert audited(root).facts["shutdown"] == "open or killed"


def test_segments_alone_are_checked_by_themselves(golden_store: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(golden_store, root, ignore=shutil.ignore_patterns("timerwheel"))
    segments = root / "commitlog"
    whole = audited(segments)
    assert whole.findings == []
    assert any("not a whole store" in note for note in whole.notes)
    expected = FAULTS["bit_flipped_in_a_body"](DamagedStore(root))
    assert named(audited(segments)) == {expected}


def test_a_place_given_as_a_uri_is_audited_alike(golden_store: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(golden_store, root, ignore=shutil.ignore_patterns("timerwheel"))
    expected = FAULTS["unit_with_a_wrong_size"](DamagedStore(root))
    report = audit(OneProcess(NoProgress()), AuditArguments(f"file://{root}"))
    assert named(report) == {expected}
