"""docs/pipeline.md: each block runs, in order, and prints the text below it; docs/analyse.md, too.

| block  | treatment                                                                                     |
|--------|-----------------------------------------------------------------------------------------------|
| python | runs; all of them in one program                                                              |
| sh     | each line is a command line of `trovemq-pipeline`, run in this process with the same session; |
|        | its exit code is 0, or that of a comment `# exit code 1`                                      |
| text   | is the output of the block above it                                                           |
| json   | is a part of the report that the last line above it prints: the report has all of it          |

Directories and the broker's port are others than those of the page.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.delivery import Engine
from tests.support.own_store import write_store
from trovemq.testing import free_port
from trovemq_proto.positions import QueueId
from trovemq_spark import cli, session
from trovemq_store.engine.record_writer import NewRecord

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pipeline.md"
ANALYSIS = ROOT / "docs" / "analyse.md"
PROGRAM = ".venv/bin/trovemq-pipeline "
DIRECTORY = "build/tutorial"
PORT = "8081"


@dataclass(frozen=True)
class Block:
    kind: str
    line: int
    """Of the page."""
    text: str


def blocks(path: Path = PAGE) -> Iterator[Block]:
    page = path.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        yield Block(match[1], page.count("\n", 0, match.start()) + 2, match[2])


def test_every_block_is_of_a_kind_that_is_run_or_compared() -> None:
    kinds = [block.kind for block in blocks()]
    assert set(kinds) == {"python", "sh", "text", "json"}
    for above, below in pairwise(kinds):
        assert below != "json" or above == "sh"
        assert below != "text" or above == "python"


def test_the_blocks_run_in_order_and_print_what_the_page_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "make_session", lambda *_args, **_options: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    port = str(free_port())
    names: dict[str, Any] = {"__name__": "tutorial"}
    said = ""
    try:
        for block in blocks():
            text = block.text.replace(DIRECTORY, str(tmp_path)).replace(PORT, port)
            place = f"{PAGE.name}:{block.line}"
            if block.kind == "text":
                assert said == text, place
            elif block.kind == "json":
                assert_part(json.loads(text), json.loads(said.splitlines()[-1]), place)
            else:
                with redirect_stdout(io.StringIO()) as shown:
                    run_sh(text, place) if block.kind == "sh" else run_python(text, block.line, names)
                said = shown.getvalue()
    finally:
        if "broker" in names:
            names["broker"].close()


def test_the_page_of_duckdb_and_pandas_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its 400 orders in a store, and other directories than those of the page."""
    monkeypatch.setattr(session, "make_session", lambda *_args, **_options: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    store, archive = tmp_path / "data", tmp_path / "archive"
    write_orders(store)
    names: dict[str, Any] = {"__name__": "analysis"}
    said, shown_texts = "", 0
    for block in blocks(ANALYSIS):
        place = f"{ANALYSIS.name}:{block.line}"
        text = re.sub(r'"(data|archive)"', lambda name: repr(str(tmp_path / name[1])), block.text)
        if block.kind == "text":
            assert said == block.text, place
            shown_texts += 1
            continue
        with redirect_stdout(io.StringIO()) as shown:
            if block.kind == "sh":
                run_sh(
                    text.replace(" data ", f" {store} ").replace("--out archive", f"--out {archive}"),
                    place,
                    "trovemq-pipeline ",
                )
            else:
                run_python(text, block.line, names, ANALYSIS)
        said = shown.getvalue()
    assert shown_texts == 3


def write_orders(path: Path) -> None:
    engine = Engine(topic="orders", queue_count=1)
    for number in range(400):
        city = ["Oslo", "Rome", "Lima"][number % 3]
        body = json.dumps({"order": number, "city": city, "cents": number * 25}).encode()
        properties = {"KEYS": f"order-{number}", "TAGS": "paid"}
        record = NewRecord("orders", QueueId(0), body, properties, born_timestamp=engine.now_ms)
        engine.writer.append([record], engine.now_ms)
    engine.store.close(engine.now_ms)
    write_store(engine.files, path)


def run_python(text: str, line: int, names: dict[str, Any], page: Path = PAGE) -> None:
    """A traceback names the line of the page."""
    exec(compile("\n" * (line - 1) + text, str(page), "exec"), names)


def run_sh(text: str, place: str, program: str = PROGRAM) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        assert line.startswith(program), place
        reported = re.search(r"# exit code (\d)$", line)
        assert cli.run(shlex.split(line.removeprefix(program), comments=True)) == int(
            reported[1] if reported else 0
        ), place


def assert_part(part: Any, whole: Any, place: str) -> None:
    """Whatever `part` has, `whole` has; lists are as long as each other."""
    if isinstance(part, dict):
        for name, value in part.items():
            assert name in whole, place
            assert_part(value, whole[name], f"{place} {name}")
    elif isinstance(part, list):
        assert len(part) == len(whole), (place, whole)
        for number, value in enumerate(part):
            assert_part(value, whole[number], f"{place}[{number}]")
    else:
        assert part == whole, place
