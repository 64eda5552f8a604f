"""The limits of this machine, measured in the same run as the broker: disk, memory, loopback, echo.

The figures of the broker are only worth something beside these: machines differ, and shared ones drift.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median

import grpc

ECHO_METHOD = "/trovemq.bench.Echo/Stream"
MEBIBYTE = 1 << 20
_PIECE = os.urandom(MEBIBYTE)


def sequential_write_bytes_per_second(directory: Path, size: int = 512 * MEBIBYTE) -> float:
    """Preallocated file, pwrite of 1 MiB pieces, one fdatasync at the end, in bytes a second."""
    with _scratch_file(directory, size) as descriptor:
        started = time.perf_counter()
        _write(descriptor, size)
        os.fdatasync(descriptor)
        return size / (time.perf_counter() - started)


def copy_bytes_per_second(files: Sequence[Path], directory: Path, size: int) -> float:
    """The first `size` bytes of these files, read and written into a preallocated one in pieces of 1 MiB, one
    fdatasync at the end, in bytes a second."""
    with _scratch_file(directory, size) as descriptor:
        started, at = time.perf_counter(), 0
        for path in files:
            with path.open("rb", buffering=0) as file:
                while at < size and (piece := file.read(min(MEBIBYTE, size - at))):
                    at += os.pwrite(descriptor, piece, at)
        os.fdatasync(descriptor)
        return at / (time.perf_counter() - started)


def warm_page_cache(directory: Path, size: int = 1024 * MEBIBYTE) -> None:
    """Writes and deletes a file: the next files get its memory. Where the host reclaims the free memory of
    its guests, the first use of a page takes ten times as long as the copying into it."""
    with _scratch_file(directory, size) as descriptor:
        _write(descriptor, size)


def fdatasync_seconds(directory: Path, count: int = 200) -> float:
    """Median time of a 4 KiB pwrite and its fdatasync into a preallocated file."""
    page = os.urandom(4096)
    times = []
    with _scratch_file(directory, count * 4096) as descriptor:
        for index in range(count):
            started = time.perf_counter()
            os.pwrite(descriptor, page, index * 4096)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - started)
    return median(times)


def method_call_seconds(count: int = 200_000) -> float:
    """Median time of a method call of this interpreter: one that was built with profile-guided optimisation
    is faster than another of the same version."""
    caller = _Caller()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(count):
            caller.call()
        times.append((time.perf_counter() - started) / count)
    return median(times)


class _Caller:
    def call(self) -> None:
        pass


@contextmanager
def _scratch_file(directory: Path, size: int) -> Iterator[int]:
    with tempfile.TemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        os.fdatasync(file.fileno())
        yield file.fileno()


def _write(descriptor: int, size: int) -> None:
    for position in range(0, size, MEBIBYTE):
        os.pwrite(descriptor, _PIECE, position)


def first_touch_seconds_per_mebibyte(directory: Path, size: int = 256 * MEBIBYTE) -> float:
    """Processor time of writing 1 MiB into fresh page cache.

    A virtual machine that returns its free memory to the host pays for every page that it takes again; on
    such a machine this is the largest part of the broker's cost of a message.
    """
    with _scratch_file(directory, size) as descriptor:
        before = os.times().system
        _write(descriptor, size)
        return (os.times().system - before) / (size / MEBIBYTE)


def memcpy_bytes_per_second(size: int = 256 * MEBIBYTE) -> float:
    """Copying a large buffer into another that is already mapped."""
    source, target = bytearray(size), bytearray(size)
    target[:] = source
    started = time.perf_counter()
    target[:] = source
    return size / (time.perf_counter() - started)


@asynccontextmanager
async def echo_server(*arguments: str) -> AsyncIterator[str]:
    """An empty echo server of the same kind as the broker, in a separate process; yields its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.echo", *arguments, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def echo_latencies(address: str, count: int, size: int = 1024) -> list[float]:
    """Seconds of `count` echoes of `size` bytes, one at a time, on one open stream."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call = channel.stream_stream(ECHO_METHOD)()
        payload = bytes(size)
        times = []
        for _ in range(count):
            started = time.perf_counter()
            await call.write(payload)
            await call.read()
            times.append(time.perf_counter() - started)
        await call.done_writing()
        return times


async def call_latencies(address: str, count: int) -> list[float]:
    """Seconds of `count` calls, one at a time, that each send one small frame and are answered by one: gRPC's
    own cost of a call."""
    async with grpc.aio.insecure_channel(address) as channel:
        frames = channel.unary_stream(ECHO_METHOD.replace("Stream", "Frames"))
        times = []
        for _ in range(count):
            started = time.perf_counter()
            async for _frame in frames(b"300"):
                pass
            times.append(time.perf_counter() - started)
        return times


async def loopback_bytes_per_second(address: str, frames: int = 300, size: int = MEBIBYTE) -> float:
    """One way through an open stream of 1 MiB frames, each acknowledged by a small one."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call = channel.stream_stream(ECHO_METHOD.replace("Stream", "Sink"))()
        payload = bytes(size)

        async def drain() -> None:
            for _ in range(frames):
                await call.read()

        started = time.perf_counter()
        reader = asyncio.create_task(drain())
        for _ in range(frames):
            await call.write(payload)
        await reader
        elapsed = time.perf_counter() - started
        await call.done_writing()
        return frames * size / elapsed
