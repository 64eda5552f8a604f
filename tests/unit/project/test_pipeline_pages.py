"""The pages about the pipeline name all that there is, and only users of Spark need it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trovemq_spark.cli import JOBS
from trovemq_spark.table import schema

ROOT = Path(__file__).resolve().parents[3]
TUTORIAL = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "pipeline-options.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run_without(modules: str, code: str) -> subprocess.CompletedProcess[str]:
    """A program in which these modules cannot be imported."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({modules.split()!r})); "
    return subprocess.run(
        [sys.executable, "-c", hide + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("job", JOBS)
def test_the_tutorial_runs_every_job_and_the_reference_and_readme_name_it(job: str) -> None:
    assert re.search(rf"^\.venv/bin/trovemq-pipeline {job} ", TUTORIAL, re.MULTILINE)
    assert f"\n### {job}\n" in REFERENCE
    assert re.search(rf"\b{job}\b", README)


def test_the_table_of_columns_has_each_column_once() -> None:
    table = REFERENCE.split("## Columns", 1)[1].split("\n## ", 1)[0]
    named = [
        name
        for cell in re.findall(r"^\| (\w[\w, ]*?) *\|", table, re.MULTILINE)
        for name in cell.split(", ")
        if name != "column"
    ]
    assert named == list(schema.ALL_COLUMNS)


@pytest.mark.slow
def test_the_pages_of_reference_are_made_without_spark() -> None:
    code = "import runpy; sys.argv = ['x', '--check']; runpy.run_path('docs/generate.py', None, '__main__')"
    done = run_without("pyspark", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_daemons_and_the_sdk_run_without_the_pipeline() -> None:
    done = run_without(
        "trovemq_spark pyspark pyarrow pandas",
        "import trovemq_broker.daemon.app, trovemq_nameserver.app, trovemq, trovemq.cli.app",
    )
    assert done.returncode == 0, done.stderr
