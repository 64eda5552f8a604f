"""A Python for the workers of the tests' Spark session: a fork of a process that has their imports done.

PySpark starts one for each streaming query and a daemon for each kind of worker, and its daemon imports
nothing before it forks: which is 0.6 to 0.9 s of the processor to import Spark, pandas, Arrow and our
sources. The launcher stands in for `python` (PYSPARK_PYTHON). Separate drivers (test_cli.py) have the
plain Python.

1. Spark starts the launcher as `python -m MODULE ARGUMENT…`; it sends these, the environment, the directory
   and its standard streams to the server.
2. The server forks a process, which becomes MODULE and keeps the connection open until its end.
3. The launcher waits for that end; a signal that ends the launcher ends the process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
REQUEST_SIZE_MAX: Final = 1 << 17
IMPORTED: Final = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "trovemq_spark.sources.live_batch",
    "trovemq_spark.sources.log_batch",
)
LAUNCHER: Final = """\
#!{python} -IS
import json, os, signal, socket, sys
if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
request = dict(words=sys.argv[2:], environment=dict(os.environ), directory=os.getcwd())
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
process = int.from_bytes(server.recv(8))
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: os.kill(process, signal.SIGKILL))
server.recv(1)
"""


@contextmanager
def warm_python(directory: Path) -> Iterator[Path]:
    """The launcher's path, while the server runs."""
    address, launcher = str(directory / "server"), directory / "python"
    launcher.write_text(LAUNCHER.format(python=sys.executable, address=address), encoding="utf-8")
    launcher.chmod(0o700)
    command = [sys.executable, "-m", "tests.pipeline.warm_python", address]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.read(1), "the server listens"
        yield launcher
        server.stdin.close()


def serve(address: str) -> dict[str, Any]:
    """Answers until its standard input ends. In a fork it returns the work to do there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    os.write(1, b".")
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a worker's collections leave the shared pages alone
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the server does not wait for the forks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the tests
    sources: list[Any] = [0, listener]
    while 0 not in select.select(sources, [], [])[0]:
        connection, _ = listener.accept()
        data, descriptors, _, _ = socket.recv_fds(connection, REQUEST_SIZE_MAX, 3)
        if not data:
            continue
        process = os.fork()
        if process == 0:
            listener.close()
            connection.send(os.getpid().to_bytes(8))
            connection.detach()
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            request: dict[str, Any] = json.loads(data)
            return request
        for descriptor in (*descriptors, connection.detach()):
            os.close(descriptor)
    return {}


def become(request: dict[str, Any]) -> None:
    """Continues as `python -m MODULE` would."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [request["directory"], *filter(None, paths)]
    sys.argv = request["words"]
    runpy.run_module(request["words"][0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    found = serve(sys.argv[1])
    if found:
        become(found)
