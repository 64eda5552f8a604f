"""A leader and a follower of neighbouring versions: the follower gets the leader's log.

As in test_neighbours.py the version before is the newest tag, or where there is none PREVIOUS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_neighbours import ROOT, files_of, path_of

pytestmark = pytest.mark.slow

PREVIOUS = "6f60f836c0c5f42f416a04b26aff01a0e597b673"
PROGRAM = ROOT / "tests" / "integration" / "replica_neighbour.py"
COUNT = 50
SECONDS_MAX = 120


def started(version: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", str(PROGRAM), *arguments],
        env={**os.environ, **path_of(version)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


@pytest.mark.parametrize("old", ["leader", "follower"])
def test_a_follower_has_the_log_of_a_leader_of_the_neighbouring_version(tmp_path: Path, old: str) -> None:
    previous = files_of(PREVIOUS, tmp_path / "previous", "tests/support", "tests/unit/replica_streams")
    versions = {"leader": ROOT, "follower": ROOT, old: previous}
    with started(versions["leader"], "lead", str(COUNT)) as leader:
        try:
            port = said(leader)["port"]
            with started(versions["follower"], "follow", str(COUNT), str(port)) as follower:
                got = json.loads(follower.communicate(timeout=SECONDS_MAX)[0])
            given = said(leader)
        finally:
            leader.communicate(timeout=SECONDS_MAX)
    assert got["log"] == given["log"]
    assert Path(given["broker"]).is_relative_to(versions["leader"])
    assert Path(got["broker"]).is_relative_to(versions["follower"])
