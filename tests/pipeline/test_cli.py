"""The command line with a real Spark: output on the terminal, exit codes, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from tests.support.pipeline_size import PIPELINE_LONG
from trovemq_spark import cli, running, session
from trovemq_spark.progress import ProgressBar

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROBE = "tests.pipeline.probe_job"
SCRIPT = (
    "from trovemq_spark import cli, running\n"
    f"cli.JOBS['probe'] = running.Job({PROBE!r}, 'A probe.')\n"
    "cli.main()"
)


class _Kept:
    """A session that the command line may stop without ending it for the other tests."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.range = spark.range
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def kept(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> _Kept:
    made = _Kept(spark)
    monkeypatch.setattr(session, "make_session", lambda *_args, **_options: made)
    monkeypatch.setitem(cli.JOBS, "probe", running.Job(PROBE, "A probe."))
    return made


@pytest.mark.parametrize(
    ("deed", "code", "said"),
    [
        ("count", 0, ""),
        ("find", 1, ""),
        ("raise", 3, "error: ARCHIVE_ILLEGAL (E310): the manifest is not JSON → "),
        ("no-space", 3, "error: DISK_FULL (E302): the disk has no space"),
        ("bug", 3, "error: ValueError: a bug"),
    ],
)
def test_the_outcome_of_a_task_is_reported_in_one_line(
    deed: str, code: int, said: str, kept: _Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["probe", "--out", "x", "--set", f"deed={deed}", "--set", "row_count=5"]) == code
    shown = capsys.readouterr()
    assert kept.stopped
    if said:
        assert not shown.out
        assert shown.err.startswith(said)
        assert shown.err.count("\n") == 1
    else:
        report = json.loads(shown.out)
        assert (report["rowCount"], report["findingCount"]) == (5, int(deed == "find"))
        assert not shown.err


def test_debug_shows_the_traceback(kept: _Kept, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["probe", "--out", "x", "--set", "deed=bug", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def start(deed: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "probe", "--out", "x", "--set", f"deed={deed}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_nothing_of_spark_reaches_the_terminal() -> None:
    process = start("find")
    out, err = process.communicate(timeout=180)
    assert (process.returncode, err) == (1, "")
    assert json.loads(out)["findings"][0]["kind"] == "hole"


STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.parametrize(("number", "code"), STOPS if PIPELINE_LONG else STOPS[:1])
def test_a_job_that_is_stopped_leaves_nothing(number: signal.Signals, code: int, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = start("wait", PROBE_FIFO=str(fifo))
    try:
        writer = os.open(fifo, os.O_WRONLY)  # now a worker is inside its task
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (code, "")
        assert err in ("stopped\n", "")
        watch = select.poll()
        watch.register(writer, select.POLLERR)
        assert watch.poll(30_000), "the worker has ended, too"
        os.close(writer)
    finally:
        if process.poll() is None:
            process.kill()


def test_the_bar_shows_each_step() -> None:
    text = io.StringIO()
    with ProgressBar(Console(file=text, force_terminal=True, width=100)) as progress:
        progress.begin("segments", 4)
        progress.advance(3)
        progress.begin("files", 0)
        progress.advance()
    assert "segments" in text.getvalue()
    assert "4/4" in text.getvalue()
    assert "files" in text.getvalue()
