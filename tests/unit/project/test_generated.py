"""Generated files equal their sources: the protocol's code and the pages of reference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.monitoring.dashboards import dashboards
from deploy.monitoring.metric_table import Metric, read_metrics

ROOT = Path(__file__).resolve().parents[3]
PROTO_FOLDERS = (
    Path("proto/trovemq_proto/v1"),
    Path("proto/trovemq_proto/rocketmq/v2"),
    Path("proto/trovemq_proto/etcd/v3"),
)
ENDINGS = ("_pb2.py", "_pb2.pyi")  # no stubs and servicers: services are registered from their descriptors
INTEROP = "tests/interop_grpc/programs"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)


def generated_names(folder: Path) -> dict[str, Path]:
    return {path.name: path for pattern in ("*_pb2*.py", "*_pb2.pyi") for path in folder.glob(pattern)}


@pytest.mark.slow
def test_the_protocol_code_is_what_the_proto_files_give(tmp_path: Path) -> None:
    """By `make proto` itself, into another folder: the command stands in one place only."""
    done = run("make", "proto", f"PROTO_OUT={tmp_path}", f"TESTS_OUT={tmp_path}")
    assert done.returncode == 0, done.stderr
    for folder in PROTO_FOLDERS:
        fresh = generated_names(tmp_path / folder.relative_to("proto"))
        committed = generated_names(ROOT / folder)
        stems = [path.stem for path in (ROOT / folder).glob("*.proto")]
        assert sorted(fresh) == sorted(stem + ending for stem in stems for ending in ENDINGS)
        assert sorted(fresh) == sorted(committed), "a .proto file came or went: run `make proto`"
        stale = [name for name in fresh if fresh[name].read_bytes() != committed[name].read_bytes()]
        assert stale == [], "run `make proto`"
    for name in ("interop_pb2.py", "interop_pb2.pyi"):
        made = (tmp_path / INTEROP / name).read_bytes()
        assert made == (ROOT / INTEROP / name).read_bytes(), "run `make proto`"


def test_the_pages_of_reference_are_what_the_tables_give() -> None:
    done = run(sys.executable, "docs/generate.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_and_alert_rules_are_what_the_table_of_metrics_gives() -> None:
    done = run(sys.executable, "-m", "deploy.monitoring", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_metric_that_no_dashboard_shows_is_named() -> None:
    with pytest.raises(ValueError, match="trovemq_new_thing_total"):
        dashboards([*read_metrics(), Metric("trovemq_new_thing_total", (), "Things")])


def test_each_metric_of_the_table_is_on_one_dashboard() -> None:
    text = "".join(json.dumps(dashboard) for dashboard in dashboards(read_metrics()).values())
    assert [metric.name for metric in read_metrics() if metric.name not in text] == []
    assert len(read_metrics()) > 100
