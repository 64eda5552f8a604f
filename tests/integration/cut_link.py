"""A network link on loopback that a test cuts and mends: while it is cut nothing passes, and nothing closes.

So a partition looks to both sides. Bytes that were sent meanwhile arrive afterwards, as TCP repeats them.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Self

from tests.support.listeners import close_listener, turns

PART_SIZE_MAX = 65_536
WAIT_S_MAX = 60


class CutLink:
    """Forwards connections to its `address` to the target; an event loop in a thread. `port`: of its address,
    which no other process takes meanwhile; 0: any."""

    def __init__(self, target: str, port: int = 0) -> None:
        host, target_port = target.rsplit(":", 1)
        self._target = host, int(target_port)
        self.address = ""
        self._port = port
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._whole = asyncio.Event()
        self._ready = threading.Event()
        self._accepted: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._thread = threading.Thread(target=self._run, name="cut-link", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WAIT_S_MAX), "the link does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S_MAX)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.set)

    def refuse(self) -> None:
        """As the port of a process that has ended."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(WAIT_S_MAX)

    def listen(self) -> None:
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(WAIT_S_MAX)

    async def _close(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await close_listener(server)

    async def _open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._whole.set()
        await self._open()
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        self._ready.set()
        await self._stop.wait()
        await self._close()
        for writer in self._accepted.values():
            writer.transport.abort()
        await turns()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._connected(reader, writer))
        self._accepted[task] = writer
        task.add_done_callback(self._accepted.pop)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._whole.wait()
            there, back = await asyncio.open_connection(*self._target)
            try:
                await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))
            finally:
                back.close()
        except OSError:
            writer.transport.abort()
        finally:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while part := await reader.read(PART_SIZE_MAX):
                await self._whole.wait()
                writer.write(part)
                await writer.drain()
        writer.close()
