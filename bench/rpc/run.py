"""Our channel and server beside grpc.aio's and a bare TCP echo on uvloop; both ends share the processors.

    calls     unary calls and streams, plain and over TLS, each transport by its own channel
    copies    how often a large message is copied
    grpc_go   the servers' cost of a call when grpc-go calls
    hostile   the effect of hostile peers on the others
    idle      the cost of idle connections

Ratios are of the same run, and where a machine is shared with others the processor times say more
than the clock.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.report import Report
from bench.rpc.calls import measure_calls
from bench.rpc.copies import measure_copies
from bench.rpc.grpc_go import measure_server_cpu
from bench.rpc.hostile import measure_hostile
from bench.rpc.idle import measure_idle
from bench.rpc.processes import Certificate

ABOUT = (
    "One client process, a server process each, on uvloop, on this machine's processors together. "
    "`callback`: the handler gets all calls of an iteration of the loop at once; else one task a call, as in "
    "grpc.aio. A round measures each transport once: a figure is the rounds' median, a ratio the median of "
    "their ratios. One call at a time wakes a sleeping processor twice, unless both ends share one: "
    "the system chooses, so each placement is measured, too. Under grpc-go, `RocketMQ's metadata` are the "
    "headers of RocketMQ's clients, with a new request id in every call, and a deadline. A hostile "
    "peer's flood takes processor time from all others: their p99 is compared with that beside a busy "
    "loop which takes as much, and with that beside peers whose ordinary calls are as many bytes. The "
    "longest turn of the loop is of 256 KiB that come at once: the longest wait of another connection.\n\n"
)

ROUNDS, ROUNDS_QUICK = 9, 3


async def measure_rpc(report: Report, directory: Path, *, quick: bool) -> None:
    rounds = ROUNDS_QUICK if quick else ROUNDS  # each as long, so that windows and caches are as warm
    certificate = Certificate.write(directory)
    await measure_calls(report, certificate, rounds)
    await measure_server_cpu(report, directory, rounds)
    await asyncio.to_thread(measure_copies, report)  # these two run separate loops
    await asyncio.to_thread(measure_hostile, report, rounds=1 if quick else 3)
    await measure_idle(report, certificate, quick=quick)
