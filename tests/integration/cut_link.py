"""A network link on loopback that a test cuts and mends: while it is cut nothing passes, and nothing closes.

So a partition looks to both sides. Bytes that were sent meanwhile arrive afterwards, as TCP repeats them.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Self

PART_SIZE_MAX = 65_536
WAIT_S_MAX = 60


class CutLink:
    """Forwards connections to its `address` to the target; an event loop in a thread."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._whole = asyncio.Event()
        self._ready = threading.Event()
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

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._whole.set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while part := await reader.read(PART_SIZE_MAX):
                await self._whole.wait()
                writer.write(part)
                await writer.drain()
        writer.close()
