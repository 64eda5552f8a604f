"""`make pipeline-demo`: a broker's messages in SQL: archived, searched by tail number, averaged, drawn.

It loads the flights into a new store (once), stops the broker, and works with the files alone. Each
step says the command that does the same. Exit codes: 0, 1 if something went wrong, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, cast

from deploy.demo.flights import FLIGHT_COUNT, TOPIC
from deploy.pipeline_demo.delays import delays_by_carrier, draw, print_delays

TAIL_NUMBER: Final = "N14228"
FOUND_MAX: Final = 3


def main() -> int:
    """Runs the demo; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.pipeline_demo", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("build/pipeline-demo"), help="for all of it")
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    try:
        load(directory / "store")
        run_jobs(directory, arguments.master)
    except subprocess.CalledProcessError as error:
        print(f"✗ the flights could not be loaded: exit code {error.returncode}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def load(store: Path) -> None:
    """A store with the flights in it and no broker on it; nothing to do where it is there."""
    done = store.with_name("store.loaded")
    if done.exists():
        return
    print(f"Loading {FLIGHT_COUNT:,} flights into {store} …", flush=True)
    addresses = (f"--{name}=127.0.0.1:{port}" for name, port in zip(_ADDRESSES, _free_ports(), strict=True))
    command = [sys.executable, "-m", "deploy.demo", "--once", f"--store={store}", *addresses]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    done.touch()


_ADDRESSES: Final = ("listen", "http", "nameserver", "nameserver-http")


def _free_ports() -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in _ADDRESSES]
        return [listener.getsockname()[1] for listener in listeners]


def run_jobs(directory: Path, master: str) -> None:
    """Archive, search and SQL in one Spark session."""
    from trovemq_spark.archive.readers import read_archive
    from trovemq_spark.jobs import archive, search
    from trovemq_spark.progress import ProgressBar
    from trovemq_spark.session import make_session

    store, out = str(directory / "store"), str(directory / "archive")
    session = make_session("pipeline-demo", master=master)
    try:
        show_command(["archive", "--store", store, "--out", out, "--set", f"topics={TOPIC}"])
        with ProgressBar() as progress:
            archived = archive.run(
                session, archive.ArchiveArguments(store=store, out=out, topics=(TOPIC,)), progress
            )
        show(archived.facts)

        show_command(
            ["search", "--archive", out, "--set", f"key={TAIL_NUMBER}", "--set", f"limit={FOUND_MAX}"]
        )
        with ProgressBar() as progress:
            found = search.run(
                session, search.SearchArguments(archive=out, key=TAIL_NUMBER, limit=FOUND_MAX), progress
            )
        show_messages(cast("list[dict[str, Any]]", found.facts["rows"]))

        delays = delays_by_carrier(read_archive(session, out, columns=("body",)))
        print("\nDelays by carrier, by Spark SQL over the archive:")
        print_delays(delays)
        picture = directory / "delays-by-carrier.png"
        draw(delays, picture)
        print(f"drawn in {picture}")
    finally:
        session.stop()


def show_command(command: Sequence[str]) -> None:
    """The command of the next step."""
    print("\n$ .venv/bin/trovemq-pipeline " + " ".join(command), flush=True)


def show(facts: dict[str, Any]) -> None:
    """A job's facts, without lists."""
    for name, value in facts.items():
        if not isinstance(value, list):
            print(f"  {name}: {json.dumps(value)}")


def show_messages(rows: list[dict[str, Any]]) -> None:
    """A line a message."""
    for row in rows:
        print(f"  queue {row['queueId']}, offset {row['queueOffset']}: {row['body'][:120]}…")


if __name__ == "__main__":
    sys.exit(main())
