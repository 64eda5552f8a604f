"""Runs a job of the archive in a separate process and kills it: at its n-th event on the file system, as
`sys.addaudithook` reports them (each before it happens), with SIGKILL.

    python -m tests.pipeline.archive_kill JOB STORE ARCHIVE [EVENT]     (no EVENT: prints how many)
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tests.pipeline.archive_logs import EVENTS
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs import archive, compact


class Killer:
    """Counts events below a directory; SIGKILL before number `at`."""

    def __init__(self, directory: str, at: int | None) -> None:
        self.count = 0
        self._directory = directory
        self._at = at

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or not str(arguments[0]).startswith(self._directory):
            return
        if self.count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


def run_job(job: str, store: str, directory: str) -> None:
    if job == "archive":
        archive.run_here(archive.ArchiveArguments(store, directory, segments_per_commit=2), NoProgress())
    else:
        compact.run_here(compact.CompactArguments(directory), NoProgress())


def run_archive_on_spark(store: str, directory: str) -> None:
    from trovemq_spark.session import make_session

    session = make_session("killed", settings={"spark.driver.memory": "512m"})
    archive.run(session, archive.ArchiveArguments(store, directory, segments_per_commit=2), NoProgress())


def main(job: str, store: str, directory: str, at: str = "") -> None:
    killer = Killer(directory, int(at) if at else None)
    sys.addaudithook(killer)
    if job == "spark":
        run_archive_on_spark(store, directory)
    else:
        run_job(job, store, directory)
    print(killer.count)


if __name__ == "__main__":
    main(*sys.argv[1:])
