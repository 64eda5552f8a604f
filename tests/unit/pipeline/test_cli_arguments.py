"""Arguments from the command line, help and usage errors: without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import MISSING, dataclass
from importlib import import_module
from typing import Literal

import pytest

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark import arguments, cli, report
from trovemq_spark.arguments import FieldHelp, UsageError
from trovemq_spark.java import JavaMissingError
from trovemq_spark.job import Finding, Report


@dataclass(frozen=True, slots=True)
class SampleArguments:
    store: str
    out: str = ""
    topics: tuple[str, ...] = ()
    queues: tuple[int, ...] = (1,)
    batch_bytes: int = 1
    timeout_ms: int = 1
    wait_seconds: int = 1
    begin_timestamp: int = 0
    row_count: int = 5
    ratio: float = 0.5
    strict: bool = False
    name: str | None = None
    order: Literal["up", "down"] = "up"


def built(*settings: str) -> SampleArguments:
    made = arguments.build(SampleArguments, {"store": "s"}, arguments.split_settings(settings))
    assert isinstance(made, SampleArguments)
    return made


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("topics=a,b", "topics", ("a", "b")),
        ("topics= a , b,", "topics", ("a", "b")),
        ("queues=3,4", "queues", (3, 4)),
        ("batch_bytes=77", "batch_bytes", 77),
        ("batch_bytes=64MiB", "batch_bytes", 64 << 20),
        ("batch_bytes=1.5KiB", "batch_bytes", 1536),
        ("batch_bytes=2GB", "batch_bytes", 2_000_000_000),
        ("batch_bytes=9B", "batch_bytes", 9),
        ("timeout_ms=250", "timeout_ms", 250),
        ("timeout_ms=1.5s", "timeout_ms", 1500),
        ("wait_seconds=2m", "wait_seconds", 120),
        ("begin_timestamp=1970-01-02", "begin_timestamp", 86_400_000),
        ("begin_timestamp=1970-01-01T00:00:01Z", "begin_timestamp", 1000),
        ("begin_timestamp=12", "begin_timestamp", 12),
        ("row_count=-3", "row_count", -3),
        ("ratio=0.25", "ratio", 0.25),
        ("strict=yes", "strict", True),
        ("strict=FALSE", "strict", False),
        ("name=a=b c", "name", "a=b c"),
        ("order=down", "order", "down"),
    ],
)
def test_values_by_the_type_of_their_field(setting: str, field: str, value: object) -> None:
    assert getattr(built(setting), field) == value


def test_a_list_given_twice_has_both() -> None:
    assert built("topics=a", "topics=b,c").topics == ("a", "b", "c")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("row_count=many", "row_count is a whole number"),
        ("row_count=1MiB", "row_count is a whole number"),
        ("batch_bytes=1XB", "batch_bytes"),
        ("timeout_ms=soon", "timeout_ms"),
        ("begin_timestamp=someday", "begin_timestamp"),
        ("strict=maybe", "true or false"),
        ("ratio=half", "ratio is a number"),
        ("order=sideways", "up, down"),
        ("noequals", "NAME=VALUE"),
    ],
)
def test_values_that_a_field_cannot_have(setting: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        built(setting)


FIELDS = [FieldHelp("store", "str", MISSING, ""), FieldHelp("row_count", "int", 5, "")]


@pytest.mark.parametrize(
    ("common", "settings", "said"),
    [
        ({"store": "s", "archive": "a"}, {}, "takes no --archive"),
        ({"store": "s"}, {"rowcount": ["1"]}, "Did you mean row_count"),
        ({"store": "s"}, {"zzz": ["1"]}, "There are: store, row_count"),
        ({}, {"row_count": ["1"]}, "needs --store"),
        ({"store": "s"}, {"store": ["t"]}, "twice"),
    ],
)
def test_unknown_names_of_a_job_are_refused(
    common: dict[str, str], settings: dict[str, list[str]], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        arguments.check_names("sample", FIELDS, common, settings)


@pytest.mark.parametrize("name", sorted(cli.JOBS))
def test_every_argument_of_a_job_has_a_type_and_a_text(name: str) -> None:
    kind = arguments.arguments_class(cli.JOBS[name].module)
    for field in arguments.fields_of(kind):
        assert field.text, field.name
        assert "Annotated" not in field.type
    assert callable(import_module(cli.JOBS[name].module).run)


def test_types_of_arguments_are_shown_as_they_are_written() -> None:
    kind = arguments.arguments_class(cli.JOBS["search"].module)
    shown = {field.name: (field.type, field.default) for field in arguments.fields_of(kind)}
    assert shown["order"] == ("Literal['newest', 'oldest']", "newest")
    assert shown["json_value"] == ("str | None", None)
    assert shown["limit"] == ("int", 100)


def test_help_shows_defaults_and_no_names_of_constants(capsys: pytest.CaptureFixture[str]) -> None:
    """`mode (str, else PERMISSIVE)`, `target_bytes (int, else 128 << 20)`."""
    assert cli.run(["archive", "--help"]) == cli.run(["compact", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "mode (str, else permissive)" in shown
    assert "row_group_rows (int, else 8192)" in shown
    assert f"target_bytes (int, else {128 << 20})" in shown
    assert "topics (tuple[str, ...])\n" in shown


def test_help_of_every_job_names_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for name, job in cli.JOBS.items():
        assert cli.run([name, "--help"]) == 0
        shown = capsys.readouterr().out
        for field in arguments.fields_of(arguments.arguments_class(job.module)):
            wanted = f"--{field.name}" if field.name in arguments.COMMON else f"{field.name} ("
            assert wanted in shown, (name, field.name)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("serch", "Did you mean search?"),
        ("search --set kye=1 --store x", "Did you mean key?"),
        ("search --store x --set limit=x", "limit is a whole number"),
        ("search --set topic=x", "--archive, --store or --server"),
        ("search --stor x", "--store"),
        ("search --out x --store y", "takes no --out"),
        ("archive", "archive needs --store, --out. See `trovemq-pipeline archive --help`."),
        ("archive --out", "requires an argument. See `trovemq-pipeline archive --help`."),
        ("audit --store x y", "unexpected extra argument"),
        ("--store x", "--store"),
        ("search --server nowhere", "'nowhere' is not HOST:PORT. See "),
        ("search --store x --set order=new", "Did you mean newest? See "),
        ("search --store x --set offset_msg_id=12", "offset_msg_id is 32 or 56 hexadecimal digits"),
        ("archive --store x --out y --set mode=strict", "mode=strict is not known"),
        ("audit --store x --set checks=que", "did you mean 'queues'"),
        ("replay --set dry_run=yes --set rate=-1", "below 0"),
        ("rebuild --store x --out y --set consume_queue_file_size=30", "a multiple of 20, not 30"),
        ("audit --store x --set consume_queue_file_size=30", "a multiple of 20, not 30"),
        ("rebuild --store x --out y --set index_item_count=1", "index_item_count is at least 2"),
    ],
)
def test_wrong_usage_ends_with_2(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(line.split()) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert not shown.out
    assert (shown.err.startswith("error: "), shown.err.count("\n")) == (True, 1)


def test_no_job_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    shown = "".join(capsys.readouterr())
    assert "archive" in shown
    assert "Usage" in shown


def test_ctrl_c_while_the_job_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(arguments, "split_settings", stop)
    assert cli.run(["audit", "--store", "x"]) == 130


def test_help_does_not_import_spark() -> None:
    script = (
        "import sys; from trovemq_spark import cli; sys.modules['pyspark'] = None\n"
        "assert [cli.run([job, '--help']) for job in cli.JOBS] == [0] * len(cli.JOBS)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "message_id" in done.stdout


# --- reports ----------------------------------------------------------------------------------------------


def test_findings_make_exit_code_1() -> None:
    made = Report("audit", {"count": 1})
    assert report.exit_code(made) == 0
    made.found(Finding("hole", "é", "f", 1))
    assert report.exit_code(made) == 1
    for terminal in (True, False):
        text = report.report_text(made, terminal=terminal)
        assert json.loads(text)["findings"][0]["what"] == "é"
        assert text.isascii()


WRAPPED = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
trovemq_proto.errors.TroveError: RECORD_DAMAGED (E221): the record at 77 is torn

\tat org.apache.spark.api.python.BasePythonRunner"""


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (TroveError(errors.JOB_RUNNING, "by 7"), "error: JOB_RUNNING (E311): by 7 → Wait for its end"),
        (RuntimeError(WRAPPED), "error: RECORD_DAMAGED"),
        (OSError(28, "No space left on device", "f"), "error: DISK_FULL (E302): the disk has no space"),
        (RuntimeError("Java said: No space left on device"), "error: DISK_FULL"),
        (JavaMissingError("Spark needs Java"), "error: Spark needs Java"),
        (ValueError("a bug\nsecond line"), "error: ValueError: a bug"),
        (NotADirectoryError(20, "Not a directory", "/a/b"), "error: /a/b: Not a directory. Check the path"),
        (TroveError(errors.STORE_FAILED, "x"), "error: STORE_FAILED (E304): x → Check the path, its owner"),
        (
            TroveError(errors.DISK_FULL, "x"),
            "error: DISK_FULL (E302): x → Free space, then run the job",
        ),
        (RuntimeError(WRAPPED.replace("TroveError: RECORD", "OtherError: RECORD")), "error: RuntimeError: "),
    ],
)
def test_a_failure_is_one_line(failure: Exception, line: str) -> None:
    said = report.failure_line(failure)
    assert said.startswith(line)
    assert "\n" not in said
    assert "Traceback" not in said


def test_a_failure_is_found_behind_others() -> None:
    outer = RuntimeError("outer")
    outer.__cause__ = TroveError(errors.ARCHIVE_ILLEGAL, "inner")
    assert report.error_of(outer).spec is errors.ARCHIVE_ILLEGAL
