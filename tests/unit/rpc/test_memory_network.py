"""The network in memory keeps TCP's promises, fails by its seed only, and needs no time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from trovemq_rpc.testing.loop import Deadlock, MemoryLoop
from trovemq_rpc.testing.pipe import Faults


def run(program: Callable[[MemoryLoop], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    loop = MemoryLoop(**options)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(program(loop))


class Echo(asyncio.BufferedProtocol):
    """Sends received bytes back, through a buffer that is smaller than most pieces."""

    def __init__(self) -> None:
        self.buffer = bytearray(100)
        self.transport: Any = None
        self.pieces: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.pieces.append(nbytes)
        self.transport.writelines(
            [bytes(self.buffer[: nbytes // 2]), bytes(self.buffer[nbytes // 2 : nbytes])]
        )


class Collector(asyncio.Protocol):
    def __init__(self) -> None:
        self.came = bytearray()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.came += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


SENT = bytes(range(256)) * 100


async def echo(loop: MemoryLoop) -> tuple[bytes, float, Any]:
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    transport, protocol = await loop.create_connection(Collector, *server.sockets[0].getsockname())
    transport.write(SENT)
    for _ in range(1000):
        await asyncio.sleep(1)
        if len(protocol.came) == len(SENT) or protocol.lost.done():
            break
    transport.close()
    return bytes(protocol.came), loop.time(), await protocol.lost


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_in_order_however_they_are_cut_and_delayed(seed: int) -> None:
    faults = Faults(piece_size_max=300, delay_s_max=0.1, stall_chance=0.05)
    came, took_s, lost = run(echo, seed=seed, faults=faults)
    assert came == SENT
    assert took_s > 1
    assert lost is None


def test_the_same_seed_gives_the_same_run() -> None:
    faults = Faults(piece_size_max=300, delay_s_max=0.1, loss_chance=0.01)
    runs = {seed: run(echo, seed=seed, faults=faults)[:2] for seed in range(10)}
    assert runs == {seed: run(echo, seed=seed, faults=faults)[:2] for seed in range(10)}
    assert len({took_s for _, took_s in runs.values()}) > 1


def test_a_lost_connection_delivers_the_beginning_and_an_error() -> None:
    came, _, lost = run(echo, seed=1, faults=Faults(piece_size_max=300, loss_chance=0.02))
    assert SENT.startswith(came)
    assert len(came) < len(SENT)
    assert isinstance(lost, ConnectionResetError)


def test_what_was_written_before_a_close_arrives_before_the_end() -> None:
    async def program(loop: MemoryLoop) -> bytes:
        server = await loop.create_server(Collector, "127.0.0.1", 7)
        made = [Collector()]
        server.factory = lambda: made[0]
        transport, _ = await loop.create_connection(Collector, "127.0.0.1", 7)
        transport.write(SENT)
        transport.close()
        assert await made[0].lost is None
        return bytes(made[0].came)

    assert run(program, faults=Faults(piece_size_max=300, delay_s_max=0.1)) == SENT


def test_a_writer_is_paused_until_the_reader_reads() -> None:
    async def program(loop: MemoryLoop) -> list[str]:
        reported = []

        class Writer(Collector):
            def pause_writing(self) -> None:
                reported.append("pause")

            def resume_writing(self) -> None:
                reported.append("resume")

        server = await loop.create_server(Echo, "127.0.0.1", 0)
        transport, _ = await loop.create_connection(Writer, *server.sockets[0].getsockname())
        loop.connections[0][1].pause_reading()
        transport.write(bytes(100_000))
        await asyncio.sleep(10)
        assert reported == ["pause"]
        loop.connections[0][1].resume_reading()
        await asyncio.sleep(10)
        return reported

    assert run(program, faults=Faults(piece_size_max=5_000)) == ["pause", "resume"]


def test_nobody_listens() -> None:
    async def program(loop: MemoryLoop) -> None:
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Collector, "127.0.0.1", 7)

    run(program)


def test_an_hour_passes_at_once_and_waiting_for_ever_fails() -> None:
    async def program(loop: MemoryLoop) -> None:
        await asyncio.sleep(3600)
        assert loop.time() == 3600
        await loop.create_future()

    with pytest.raises(Deadlock):
        run(program)
