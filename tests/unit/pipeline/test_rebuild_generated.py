"""Rebuilding larger stores that the engine wrote: with rolls, deleted topics, and a trimmed beginning."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.generated_store import ROLLING, delete_topic, trim, write_random_store
from tests.support.rebuilt import files_of, index_contents, rebuild_here
from trovemq_spark.log.segments import LogDirectory
from trovemq_store.check.repair import repair
from trovemq_store.check.store_view import StoreView
from trovemq_store.index.consume_queue import BLANK_UNIT, UNIT_DTYPE

pytestmark = pytest.mark.slow

TOPICS = ("orders", "bills", "mails")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("written") / "store"
    write_random_store(root, 50_000, seed=6, topics=TOPICS)
    return root


def test_the_rebuilt_files_are_those_that_the_broker_wrote(written: Path, tmp_path: Path) -> None:
    report = rebuild_here(written, tmp_path / "out")
    assert report.findings == []
    assert report.facts["records"] == report.facts["units"] == 50_000
    queue_files = files_of(written / "consumequeue")
    assert len(queue_files) > 2 * len(TOPICS) * 4, "queues roll"
    assert len(index_contents(written)) > 3, "the index rolls"
    assert files_of(tmp_path / "out" / "consumequeue") == queue_files
    assert index_contents(tmp_path / "out") == index_contents(written)


def test_deleted_topics_and_what_was_trimmed_stay_away(written: Path, tmp_path: Path) -> None:
    store, repaired, out = tmp_path / "store", tmp_path / "repaired", tmp_path / "out"
    shutil.copytree(written, store)
    delete_topic(store, "bills")
    trim(store, 3)
    report = rebuild_here(store, out)
    assert report.findings == []
    assert report.facts["logBegin"] == 3 * ROLLING.commit_log_file_size
    assert report.facts["recordsOfDeletedTopics"]
    assert [path.name for path in (out / "consumequeue" / "bills").iterdir()] == ["1"]
    shutil.copytree(store, repaired)
    repair(StoreView.open(repaired), repaired)
    assert files_of(out / "consumequeue") == files_of(repaired / "consumequeue")
    assert index_contents(out) == index_contents(repaired)
    _check_against_broker(store, out)


def _check_against_broker(store: Path, out: Path) -> None:
    """The broker's own queue files, but for blanks where the units of trimmed records were."""
    begin = LogDirectory.open(str(store)).begin
    stored, built = files_of(store / "consumequeue"), files_of(out / "consumequeue")
    assert list(built) == list(stored)
    for path, content in stored.items():
        units = np.frombuffer(content, UNIT_DTYPE).copy()
        gone = (units["physical_offset"] < begin) & (units["size"] > 0)
        units[gone] = BLANK_UNIT[0]
        assert built[path] == units.tobytes(), path


def test_queues_that_only_their_own_files_know_are_reported(written: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(written, store)
    trim(store, len(list((store / "commitlog").iterdir())) - 1)
    (store / "consumequeue" / "bills" / "1").rename(store / "consumequeue" / "bills" / "7")
    report = rebuild_here(store, tmp_path / "out", parts="consumequeue")
    assert report.findings == []
    assert any("1 queues of the store (bills/7)" in note for note in report.notes)


@pytest.mark.parametrize("core_count", [1, 64])
def test_damaged_records_are_findings_and_the_rest_continues(
    core_count: int, written: Path, tmp_path: Path
) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    shutil.copytree(written, store)
    segment = sorted((store / "commitlog").iterdir())[1]
    data = bytearray(segment.read_bytes())
    data[200_000] ^= 0xFF
    segment.write_bytes(data)
    report = rebuild_here(store, out, core_count=core_count)
    (damaged,) = [finding for finding in report.findings if finding.kind == "recordDamaged"]
    assert damaged.file == f"commitlog/{segment.name}"
    assert damaged.offset <= 200_000 < damaged.offset + int(damaged.what.split()[0])
    (hole,) = [finding for finding in report.findings if finding.kind == "queueHole"]
    assert report.finding_count == 2
    assert report.facts["units"] == 49_999
    stored, built = files_of(store / "consumequeue"), files_of(out / "consumequeue")
    different = [path for path in stored if built[path] != stored[path]]
    assert len(different) == 1
    units = np.frombuffer(stored[different[0]], UNIT_DTYPE)
    rebuilt = np.frombuffer(built[different[0]], UNIT_DTYPE)
    (place,) = np.flatnonzero(units != rebuilt).tolist()
    assert rebuilt[place] == BLANK_UNIT[0]
    assert int(units[place]["physical_offset"]) == int(segment.name) + damaged.offset
    behind = int(hole.file.rpartition("/")[2]) + hole.offset
    assert int(units[place + 1]["physical_offset"]) == behind
