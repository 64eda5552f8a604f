"""A network that goes silent: a proxy on loopback that stops forwarding, and closes nothing.

So a firewall, NAT or load balancer treats a connection that it has forgotten. New connections work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.listeners import close_listener


class BlackHole:
    """Forwards the connections to its `address` to the target."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._directions: list[tuple[bool, asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._silent: set[asyncio.StreamReader] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.address = ""
        self.connections = 0

    def swallow(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """From now on nothing arrives by the connections that are open, in these directions."""
        for upwards, reader, _ in self._directions:
            if to_server if upwards else to_client:
                self._silent.add(reader)
        self._directions.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            peer_reader, peer_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._writers += (writer, peer_writer)
        for upwards, source, sink in ((True, reader, peer_writer), (False, peer_reader, writer)):
            self._directions.append((upwards, source, sink))
            task = asyncio.get_running_loop().create_task(self._forward(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if source not in self._silent:
                    sink.write(data)
                    await sink.drain()
        if source not in self._silent:
            sink.close()

    async def close(self) -> None:
        """Ends all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


@asynccontextmanager
async def black_hole(target: str) -> AsyncIterator[BlackHole]:
    """The proxy, until the end of the block."""
    proxy = BlackHole(target)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        await close_listener(server)
        await proxy.close()
