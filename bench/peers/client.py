"""`python -m bench.peers.client MODULE CLIENT WORK TASK`: one workload; the last line is the answer as JSON.

`live` is two processes: this one sends, and another one reads and measures.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from importlib import import_module
from inspect import isawaitable
from typing import Any

from bench.peers.task import Answer, Task


async def _work(module: Any, name: str, work: str, task: Task) -> Any:
    """Methods of a client take its connection; they may be coroutines."""
    async with module.connected(task) as connection:
        if work == "live_read":
            print("ready", flush=True)
        found = getattr(module.CLIENTS[name](), work)(connection, task)
        answer = await found if isawaitable(found) else found
        if answer is not None:
            print(json.dumps(answer), flush=True)
            os._exit(0)  # the client's end is not waited for
        return None


async def _live(module: Any, name: str, task: Task) -> Answer:
    command = [sys.executable, "-m", "bench.peers.client", sys.argv[1], name, "live_read", sys.argv[4]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        try:
            if not reader.stdout.readline():
                raise RuntimeError("the reader ended before it was ready")
            await asyncio.sleep(0.2)
            await _work(module, name, "live_send", task)
            answer: Answer = json.loads(reader.stdout.readlines()[-1])
            return answer
        finally:
            reader.kill()


def main() -> None:
    name, work, text = sys.argv[2:]
    module = import_module(f"bench.peers.{sys.argv[1]}")
    task = Task(**json.loads(text))
    run = import_module("uvloop").run
    if work == "live":
        print(json.dumps(run(_live(module, name, task))), flush=True)
    else:
        run(_work(module, name, work, task))


if __name__ == "__main__":
    main()
