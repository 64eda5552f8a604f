"""Forwards TCP connections from a free port to an address, as `ssh -L` or a container does."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Self

from tests.support.listeners import close_listener

PART_SIZE_MAX = 65_536


class PortForwarder:
    """It runs an event loop in a thread. `address` is where clients connect."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self.address = ""
        self.connections = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="port-forwarder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60), "the forwarder does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        self._ready.set()
        await self._stop.wait()
        await close_listener(server)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(PART_SIZE_MAX):
            writer.write(part)
            await writer.drain()
    writer.close()
