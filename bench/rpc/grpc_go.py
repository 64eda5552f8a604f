"""The server's cost of a call when grpc-go calls, which is faster than any of the servers.

The program under load/ makes 1 KiB calls, 64 in flight; some runs send the headers of RocketMQ's clients: a
deadline, and metadata with a new request id in every call. Needs Go.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from subprocess import PIPE
from typing import Any

from bench.report import Report, median_ratio
from bench.rpc.calls import GRPC_AIO_FEWER, IN_FLIGHT, OURS, THEIRS
from bench.rpc.processes import Server, channel_to, serving
from bench.rpc.server import SERVICE

LOAD = Path(__file__).resolve().parent / "load"
CALLS_WARM = 500
CALLS_EACH_ROUND = 10_000
PROCESS_S_MAX = 300
PLAIN, ROCKETMQ = "", ", RocketMQ's metadata"
FLAGS: dict[str, tuple[str, ...]] = {PLAIN: (), ROCKETMQ: ("-rocketmq",)}
GOALS_US = {PLAIN: 20, ROCKETMQ: 35}


class LoadError(Exception):
    """The load could not be built or failed; the message says how."""


@dataclass(slots=True)
class Loaded:
    """A method under load, with its server's microseconds a call by round, for each kind of call."""

    server: Server
    method: str
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in FLAGS})


async def measure_server_cpu(report: Report, directory: Path, rounds: int) -> None:
    try:
        load = await _build(directory)
        with ExitStack() as opened:
            native, grpcio = (opened.enter_context(serving(kind)) for kind in ("native", "grpcio"))
            methods = {
                OURS: Loaded(native, "EchoCallback"),
                "ours": Loaded(native, "Echo"),
                THEIRS: Loaded(grpcio, "Echo"),
            }
            for method in methods.values():
                await _warm(load, method)
            for _ in range(rounds):
                for method in methods.values():
                    await _measure(load, method, CALLS_EACH_ROUND)
    except LoadError as error:
        report.notes.append(f"server's processor a call from grpc-go was not measured: {error}")
        return
    _add(report, methods)


async def _build(directory: Path) -> Path:
    if shutil.which("go") is None:
        raise LoadError("Go is not installed")
    program = directory.resolve() / "load"  # Go runs in another directory
    await _run("go", "build", "-o", str(program), ".", cwd=LOAD)
    return program


async def _run(*command: str, cwd: Path | None = None) -> None:
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, stdout=PIPE, stderr=PIPE)
    try:
        _, faults = await asyncio.wait_for(process.communicate(), PROCESS_S_MAX)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise LoadError(f"{Path(command[0]).name} took more than {PROCESS_S_MAX} s") from None
    if process.returncode:
        raise LoadError(f"{Path(command[0]).name}: {faults.decode(errors='replace').strip()[-500:]}")


async def _call(load: Path, method: Loaded, calls: int, *flags: str) -> None:
    target = ("-address", method.server.target, "-method", f"/{SERVICE}/{method.method}")
    await _run(str(load), *target, "-calls", str(calls), "-in-flight", str(IN_FLIGHT), *flags)


async def _warm(load: Path, method: Loaded) -> None:
    for flags in FLAGS.values():
        await _call(load, method, CALLS_WARM, *flags)


async def _measure(load: Path, method: Loaded, calls: int) -> None:
    if method.server.kind == "grpcio":
        calls //= GRPC_AIO_FEWER
    async with channel_to(method.server, "native") as channel:
        cpu: Any = channel.unary_unary(f"/{SERVICE}/Cpu")
        for kind, flags in FLAGS.items():
            before = float(await cpu(b""))
            await _call(load, method, calls, *flags)
            method.cpu_us[kind].append((float(await cpu(b"")) - before) / calls * 1e6)


def _add(report: Report, methods: dict[str, Loaded]) -> None:
    for kind, goal_us in GOALS_US.items():
        for name, method in methods.items():
            goal: dict[str, float] = {} if name == THEIRS else {"at_most": goal_us}
            title = f"{name}: server's processor a call from grpc-go{kind}"
            report.add(title, median(method.cpu_us[kind]), "us", **goal)
        for name in (OURS, "ours"):
            over = median_ratio(methods[name].cpu_us[kind], methods[THEIRS].cpu_us[kind])
            goal = {"at_most": 0.1} if kind == PLAIN else {}
            report.add(f"the same, {name} over grpc.aio's{kind}", over, "x", **goal)
