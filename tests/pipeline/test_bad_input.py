"""Bad input for the jobs, by the command line, one after another: the exit code, the one line of the error,
and that nothing half-written stays. Tasks run in this process, without Spark.

| input                              | where else it is shown                                               |
|------------------------------------|----------------------------------------------------------------------|
| no store, no archive, no directory |----------------------------------------------------------------------|
| segments missing in the middle     | test_log_source.py, test_audit.py (each planted fault)               |
| an open segment                    | test_log_source.py, test_log_stream.py                               |
| a segment removed while it is read | test_archive.py, test_log_stream.py                                  |
| damaged records, three modes       | test_archive.py, test_log_source.py                                  |
| offsets out of range               | test_log_source.py, test_live_source.py                              |
| an unknown topic                   | test_live_source.py, test_search.py, test_replay.py                  |
| a broker that goes away            | test_live_stream.py, test_replay.py, test_topic_sink.py (in mid-job) |
| disk full                          | test_archive.py (at every write)                                     |
| two runs at once                   | test_archive.py, test_rebuild.py                                     |
| the driver stopped or killed       | test_archive.py (kill -9 at every moment), test_cli.py (signals)     |
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.archive_logs import GrowingLog, archive_rows, log_rows
from tests.support.small_disks import mounted_disk
from trovemq.testing import free_port
from trovemq_proto.records import MAGIC_V1
from trovemq_spark import cli, session
from trovemq_spark.archive.lock import locked
from trovemq_spark.log import segments
from trovemq_spark.storage import StoragePath
from trovemq_spark.tasks import OneProcess

pytestmark = pytest.mark.slow

WITH_TASKS = ("archive", "compact", "rebuild", "audit", "trace")
Command = Callable[..., "Outcome"]


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.err = err
        self.report: dict[str, Any] = json.loads(out) if out else {}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`trovemq-pipeline WORD…` in this process. An error is one line on standard error, and then there is
    nothing on standard output."""
    for name in WITH_TASKS:
        module = importlib.import_module(cli.JOBS[name].module)
        monkeypatch.setattr(module, "SparkTasks", lambda _session, progress: OneProcess(progress))
    monkeypatch.setattr(session, "make_session", lambda *_args, **_options: None)

    def run(*words: object) -> Outcome:
        code = cli.run([str(word) for word in words])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        assert shown.err.count("\n") == (code > 1), shown.err
        assert bool(shown.out) == (code <= 1)
        return Outcome(code, shown.out, shown.err)

    return run


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    made = GrowingLog(tmp_path / "store", 7)
    made.grow(200)
    assert len(segment_files(made.store)) >= 4
    return made


def segment_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def files_below(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# --- wrong places ------------------------------------------------------------------------------------


def wrong_place(root: Path, kind: str) -> Path:
    path = root / kind
    if kind == "other-files":
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    elif kind == "a-file":
        path.write_text("mine")
    elif kind == "empty":
        path.mkdir()
    return path


KINDS = ("missing", "empty", "other-files", "a-file")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("job", ["archive", "rebuild", "audit", "search", "trace", "replay"])
def test_a_path_that_is_not_a_store(job: str, kind: str, command: Command, tmp_path: Path) -> None:
    place = wrong_place(tmp_path, kind)
    before = files_below(tmp_path)
    more: dict[str, list[object]] = {
        "archive": ["--out", tmp_path / "out"],
        "rebuild": ["--out", tmp_path / "out"],
        "replay": ["--set", "dry_run=true"],
    }
    done = command(job, "--store", place, *more.get(job, []))
    assert done.code == 3
    assert str(place) in done.err
    assert files_below(tmp_path) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "empty"])
@pytest.mark.parametrize("job", ["search", "compact", "replay"])
def test_a_path_that_is_not_an_archive(job: str, kind: str, command: Command, tmp_path: Path) -> None:
    place = wrong_place(tmp_path, kind)
    before = files_below(tmp_path)
    done = command(job, "--archive", place, *(["--set", "dry_run=true"] if job == "replay" else []))
    assert done.code == 3
    assert str(place) in done.err
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ([], "give one source"),
        (["--store", "STORE", "--archive", "STORE"], "give one source"),
        (["--store", "STORE", "--server", "nowhere"], "is not HOST:PORT"),
        (["--set", "source_server=nowhere"], "is not HOST:PORT"),
    ],
)
def test_unreadable_input_of_replay_was_named_after_spark_had_started(
    words: list[str], reported: str, command: Command, log: GrowingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trovemq_spark.session.make_session", lambda *_, **__: pytest.fail("Spark starts"))
    given = [str(log.store) if word == "STORE" else word for word in words]
    done = command("replay", "--set", "dry_run=true", *given)
    assert done.code == 2
    assert reported in done.err


@pytest.mark.parametrize("kind", ["other-files", "a-file"])
def test_an_archive_is_not_made_where_something_else_is(
    kind: str, command: Command, log: GrowingLog, tmp_path: Path
) -> None:
    place = wrong_place(tmp_path, kind)
    before = list(tmp_path.rglob("*"))
    assert command("archive", "--store", log.store, "--out", place).code == 3
    assert list(tmp_path.rglob("*")) == before, "not even a directory stays"
    # A refused archive is not one afterwards, in which a search would find nothing.
    assert command("search", "--archive", place, "--set", "key=a").code == 3


@pytest.mark.parametrize("where", ["", "archive", "commitlog/archive"])
@pytest.mark.parametrize("job", ["archive", "rebuild", "trace"])
def test_nothing_is_written_into_a_store(job: str, where: str, command: Command, log: GrowingLog) -> None:
    before = list(log.store.rglob("*"))
    for store in (log.store, log.directory):
        done = command(job, "--store", store, "--out", log.store / where)
        assert done.code == 2
        assert "only read" in done.err
    assert list(log.store.rglob("*")) == before


def test_a_kind_of_storage_that_is_not_known(command: Command) -> None:
    done = command("audit", "--store", "gopher://x/y")
    assert done.code == 2
    assert "gopher://x/y" in done.err


@pytest.mark.parametrize("server", ["nowhere", "host:port", "http://host:1", "host:99999"])
def test_a_malformed_address_is_refused(server: str, command: Command) -> None:
    done = command("search", "--server", server, "--set", "key=a")
    assert done.code == 2
    assert "is not HOST:PORT" in done.err


def test_a_malformed_message_id_is_refused(command: Command, log: GrowingLog) -> None:
    done = command("search", "--store", log.store, "--set", "offset_msg_id=xyz")
    assert (done.code, "32 or 56" in done.err) == (2, True)


# --- logs that are not whole -------------------------------------------------------------------------


def test_segments_missing_in_the_middle(command: Command, log: GrowingLog, tmp_path: Path) -> None:
    gone = segment_files(log.store)[1]
    gone.unlink()
    left = len(log_rows(log.store))
    done = command("archive", "--store", log.store, "--out", tmp_path / "out")
    assert (done.code, done.report["rows"]) == (1, left)
    assert [(found["kind"], found["file"]) for found in done.report["findings"]] == [
        ("segmentsMissing", gone.name)
    ]
    assert any(
        gone.name in found["file"] or str(int(gone.name)) in found["what"]
        for found in command("audit", "--store", log.store).report["findings"]
    )
    assert any(str(int(gone.name)) in note for note in command("trace", "--store", log.store).report["notes"])
    searched = command("search", "--store", log.store).report
    assert not searched["complete"]


def test_an_open_segment_is_read_to_its_last_whole_record(
    command: Command, log: GrowingLog, tmp_path: Path
) -> None:
    last = segment_files(log.store)[-1]
    whole = log.end - int(last.name)
    with last.open("r+b") as file:  # an append that continues
        file.seek(whole)
        file.write((400).to_bytes(4, "big") + (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4, "big"))
    done = command("archive", "--store", log.store, "--out", tmp_path / "out")
    assert (done.code, done.report["readTo"]) == (0, log.end)
    assert done.report["notes"] == [
        f"segment {last.name} is not full: read to its last whole record, {log.end}"
    ]


def test_a_segment_that_is_removed_while_it_is_read(
    command: Command, log: GrowingLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = segment_files(log.store)[2]
    kept = victim.read_bytes()
    real = segments.LogDirectory.open_segment

    def remove_first(self: segments.LogDirectory, file: segments.SegmentFile) -> Any:
        if file.name == victim.name:
            victim.unlink(missing_ok=True)
        return real(self, file)

    monkeypatch.setattr(segments.LogDirectory, "open_segment", remove_first)
    for job in ("archive", "rebuild", "audit", "trace"):
        out = ["--out", tmp_path / job] if job in ("archive", "rebuild") else []
        done = command(job, "--store", log.store, *out)
        assert done.code == 3
        assert f"OFFSET_OUT_OF_RANGE (E112): segment {victim.name} was removed" in done.err
        victim.write_bytes(kept)
    assert not (tmp_path / "rebuild" / "consumequeue").exists()
    monkeypatch.undo()


@pytest.mark.parametrize("mode", ["permissive", "failfast", "dropmalformed"])
def test_damaged_records(mode: str, command: Command, log: GrowingLog, tmp_path: Path) -> None:
    rows = log_rows(log.store)
    target = segment_files(log.store)[0]
    data = bytearray(target.read_bytes())
    data[int.from_bytes(data[:4], "big") - 3] ^= 1  # the first record's properties end there
    data[90] ^= 1  # and its body begins about there
    target.write_bytes(data)
    done = command("archive", "--store", log.store, "--out", tmp_path / "out", "--set", f"mode={mode}")
    if mode == "failfast":
        assert done.code == 3
        assert f"RECORD_DAMAGED (E204): {target.name}: " in done.err
        assert not archive_rows(tmp_path / "out")
        return
    assert done.report["dropped"] == (mode == "dropmalformed")
    assert len([row for row in archive_rows(tmp_path / "out") if row in set(rows)]) == len(rows) - 1


def test_a_topic_that_nobody_wrote_is_reported(command: Command, log: GrowingLog, tmp_path: Path) -> None:
    reported = "no message of topic oders is there"
    for job in ("archive", "trace"):
        out = ["--out", tmp_path / "out"] if job == "archive" else []
        done = command(job, "--store", log.store, *out, "--set", "topics=orders,oders")
        assert done.code == 0
        assert [note for note in done.report["notes"] if "no message of" in note] == [reported]


# --- brokers, disks, other runs ----------------------------------------------------------------------


def test_a_broker_that_does_not_answer(command: Command) -> None:
    port = free_port()
    done = command("search", "--server", f"127.0.0.1:{port}", "--set", "key=a")
    assert done.code == 3
    assert f"BROKER_UNREACHABLE (E403): 127.0.0.1:{port}" in done.err


def test_a_full_disk(command: Command, log: GrowingLog, tmp_path: Path) -> None:
    with mounted_disk("tmpfs", tmp_path / "disk", 40 << 10) as disk:
        if disk is None:
            pytest.skip("no file system can be mounted here")
        done = command("archive", "--store", log.store, "--out", disk / "out")
        assert done.code == 3
        assert done.err.startswith("error: DISK_FULL (E302): ")
        assert "restart the broker" not in done.err
        assert not archive_rows(disk / "out")


def test_two_runs_at_once(command: Command, log: GrowingLog, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with locked(StoragePath(out), "_manifest/lock", "compact"):
        done = command("archive", "--store", log.store, "--out", out)
        assert done.code == 3
        assert "JOB_RUNNING (E311): job compact (process " in done.err
    assert command("archive", "--store", log.store, "--out", out).code == 0


def test_a_run_that_is_stopped_continues_where_it_was(
    command: Command, log: GrowingLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the third segment."""
    victim = segment_files(log.store)[2].name
    real = segments.LogDirectory.open_segment

    def stop(self: segments.LogDirectory, file: segments.SegmentFile) -> Any:
        if file.name == victim:
            raise KeyboardInterrupt
        return real(self, file)

    line = ("archive", "--store", log.store, "--out", tmp_path / "out", "--set", "segments_per_commit=1")
    with monkeypatch.context() as patch:
        patch.setattr(segments.LogDirectory, "open_segment", stop)
        done = command(*line)
    assert (done.code, done.err) == (130, "stopped\n")
    archived = archive_rows(tmp_path / "out")
    assert archived == [row for row in log_rows(log.store) if row in set(archived)]
    assert command(*line).code == 0
    assert archive_rows(tmp_path / "out") == log_rows(log.store)
