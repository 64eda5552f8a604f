"""Rates and processor time of this tree's client and broker beside another tree's, measured alternately.

    python -m bench.whole.run TREE [ROW ...] [--rounds 3] [--tls] [--users] [--sync]

`TREE` is a checkout of another commit in which `make setup` ran. Each tree has its own interpreter, broker
and client. A round measures a row in both trees, alternately; the table shows the median of the rounds'
ratios, this tree to the other: client and broker in processor time a message (below 1: cheaper), rate (above
1: faster). Rates move with other work of the machine; processor time moves less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

from bench.processes import answers
from bench.whole.load import ROWS
from trovemq._net.certificates import HOSTS_DEFAULT, make_authority, make_server
from trovemq.testing import free_port

HERE: Final = Path(__file__).resolve().parents[2]
LOAD: Final = Path(__file__).with_name("load.py")
START_S: Final = 60
NAMES: Final = ("client", "broker", "seconds")


class Tree:
    """The broker and the client of one tree, as processes."""

    def __init__(self, tree: Path, directory: Path, arguments: argparse.Namespace) -> None:
        self._python = tree / ".venv" / "bin" / "python"
        self._compile(tree)
        self._environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        address, tls = (f"127.0.0.1:{free_port()}" for _ in range(2))
        command = [str(tree / ".venv" / "bin" / "trovemq"), "server", "--listen", address, "--http", "off"]
        command += ["--store", str(directory / "store"), "--set", "autoCreateTopicEnable=false"]
        if not arguments.sync:
            command += ["--set", "flushDiskType=ASYNC_FLUSH"]
        ca = secret = ""
        if arguments.tls:
            write_certificate(directory)
            command += ["--tls-listen", tls]
            for name in ("certificate", "key"):
                command += [f"--tls-{name}", str(directory / name)]
            ca = str(directory / "ca")
        if arguments.users:
            secret = "bench-secret-0123456789"
            user = json.dumps({"username": "admin", "password": secret})
            self._environment["TROVEMQ_BROKER_INIT_AUTHENTICATION_USER"] = user
            command += ["--set", "authenticationEnabled=true", "--set", "authorizationEnabled=true"]
        self._log = (directory / "broker.log").open("wb")
        self._broker = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, env=self._environment, cwd=directory
        )
        if not answers(int(address.rpartition(":")[2]), self._broker, START_S):
            raise SystemExit(f"the broker of {tree} does not start: {directory}/broker.log")
        time.sleep(1)
        to = tls if arguments.tls else address
        self._load = subprocess.Popen(
            [str(self._python), str(LOAD), to, str(self._broker.pid), address, ca, secret],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment, cwd=directory,
        )  # fmt: skip

    def _compile(self, tree: Path) -> None:
        """A tree without compiled files would compile its modules at each start."""
        folders = [str(tree / name) for name in ("broker", "clients", "daemon", "proto", "rpc", "store")]
        folders = [folder for folder in folders if Path(folder).is_dir()]
        subprocess.run([str(self._python), "-m", "compileall", "-q", *folders], check=False)

    def measure(self, row: str) -> dict[str, float]:
        """Seconds a message: of the client, of the broker, and in all."""
        assert self._load.stdin is not None
        assert self._load.stdout is not None
        self._load.stdin.write(f"{row}\n")
        self._load.stdin.flush()
        line = self._load.stdout.readline()
        if not line:
            raise SystemExit(f"{row}: the load has ended")
        found = json.loads(line)
        return {name: found[name] / found["messages"] for name in NAMES}

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self._load.communicate()
        self._broker.terminate()
        self._broker.wait()
        self._log.close()


def write_certificate(directory: Path) -> None:
    """The files ca, certificate and key, for loopback."""
    now = datetime.now(UTC)
    authority = make_authority("bench", 1, now)
    pair = make_server(authority.certificate, authority.key, HOSTS_DEFAULT, 1, now)
    for name, content in (
        ("ca", authority.certificate),
        ("certificate", pair.certificate),
        ("key", pair.key),
    ):
        (directory / name).write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.whole.run", description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="all rows unless named")
    parser.add_argument("--rounds", type=int, default=3)
    for name in ("tls", "users", "sync"):
        parser.add_argument(f"--{name}", action="store_true")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trovemq-whole-")))
        trees = []
        for name, tree in (("other", arguments.tree.resolve()), ("this", HERE)):
            (directory / name).mkdir()
            trees.append(stack.enter_context(Tree(tree, directory / name, arguments)))
        print(f"{'':12}{'client':>18}{'broker':>18}{'rate':>18}   microseconds a message, this tree; ratio")
        for row in arguments.rows or ROWS:
            show(row, trees, arguments.rounds)


def show(row: str, trees: list[Tree], rounds: int) -> None:
    for tree in trees:
        tree.measure(row)
    pairs = []
    for number in range(rounds):
        found = {id(tree): tree.measure(row) for tree in (trees if number % 2 else reversed(trees))}
        pairs.append([found[id(tree)] for tree in trees])
    text = f"{row:12}"
    for name in NAMES:
        ratio = median(this[name] / other[name] for other, this in pairs)
        ours = median(this[name] for _, this in pairs) * 1e6
        text += f"{ours:>11.1f}  {1 / ratio if name == 'seconds' else ratio:.2f} "
    print(text, flush=True)


if __name__ == "__main__":
    main()
