"""An event loop without sockets, whose clock the tests control.

    loop = MemoryLoop(seed=7, faults=Faults(piece_size_max=1024, delay_s_max=0.01))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test())

Where nothing is ready the clock jumps to the next timer. A program that waits for an event that can never
come fails with Deadlock instead of hanging. `create_server` and `create_connection` join ends in memory;
there are no sockets, processes or signals. Names resolve to 127.0.0.1 and to the addresses in `names`.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

from trovemq_rpc.testing.pipe import Faults
from trovemq_rpc.testing.transport import MemoryTransport, join

__all__ = ["Deadlock", "MemoryLoop", "MemoryServer"]

FIRST_PORT: Final = 50_000  # for listeners that name none


class Deadlock(RuntimeError):  # noqa: N818 - the name says it
    """Nothing is ready and no timer is set: the program waits for ever."""


class _Selector:
    """Takes the place of a loop's selector: waiting moves the clock."""

    def __init__(self, loop: "MemoryLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing is ready and no timer is set")
        self._loop.now_s += max(timeout, 0)
        if self._loop.now_s > self._loop.end_s:
            raise Deadlock(f"the program still runs after {self._loop.end_s:.0f} s of the loop's clock")
        return []


class MemoryServer(asyncio.AbstractServer):
    """A listener."""

    def __init__(self, loop: "MemoryLoop", address: tuple[str, int], factory: Callable[[], Any]) -> None:
        self._loop = loop
        self.address = address
        self.factory = factory
        self.sockets = [_SocketName(address)]

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._loop.listeners.get(self.address) is self

    async def start_serving(self) -> None:
        self._loop.listeners[self.address] = self

    async def serve_forever(self) -> None:
        await self.start_serving()
        await self._loop.create_future()

    def close(self) -> None:
        if self.is_serving():
            del self._loop.listeners[self.address]

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class _SocketName:
    """The part of a socket that a server shows."""

    family = socket.AF_INET

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class MemoryLoop(asyncio.BaseEventLoop):
    """See the module. `now_s` is the clock, `end_s` its last moment; `random` and `faults` hold for
    connections that are made from now on.
    """

    def __init__(
        self,
        seed: int = 0,
        faults: Faults | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
        end_s: float = 1e6,
    ) -> None:
        super().__init__()
        self.now_s = 0.0
        self.end_s = end_s
        self.unreachable = False  # attempts to connect get no answer
        self.random = Random(seed)  # noqa: S311 - not for secrets
        self.faults = faults or Faults()
        self.names = dict(names or {})
        self.listeners: dict[tuple[str, int], MemoryServer] = {}
        self.connections: list[tuple[MemoryTransport, MemoryTransport]] = []
        self._selector = _Selector(self)
        self._next_port = FIRST_PORT

    # --- for asyncio's base -------------------------------------------------------------------------------
    def time(self) -> float:
        return self.now_s

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """There is no selector to wake here."""

    # --- the network --------------------------------------------------------------------------------------
    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: Any = None, port: int = 0, **_options: Any
    ) -> MemoryServer:
        name = host if isinstance(host, str) and host else "127.0.0.1"
        if not port:
            port, self._next_port = self._next_port, self._next_port + 1
        if (name, port) in self.listeners:
            raise OSError(f"{name}:{port} is in use")
        server = MemoryServer(self, (name, port), protocol_factory)
        await server.start_serving()
        return server

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str = "", port: int = 0, **_options: Any
    ) -> tuple[MemoryTransport, Any]:
        await asyncio.sleep(self.faults.delay_s(self.random))
        if self.unreachable:
            await self.create_future()
        addresses = self.names.get(host, (host,))
        for address in addresses:
            listener = self._listener(address, port)
            if listener is not None:
                return self._connect(protocol_factory, listener)
        raise ConnectionRefusedError(f"no server listens on {host}:{port}")

    def _listener(self, host: str, port: int) -> MemoryServer | None:
        host = "127.0.0.1" if host == "localhost" else host
        return self.listeners.get((host, port)) or self.listeners.get(("0.0.0.0", port))  # noqa: S104

    def _connect(
        self, protocol_factory: Callable[[], Any], listener: MemoryServer
    ) -> tuple[MemoryTransport, Any]:
        client, server = join(self, self.random, self.faults, listener.address)
        self.connections = [pair for pair in self.connections if not (pair[0].lost and pair[1].lost)]
        self.connections.append((client, server))
        protocol = protocol_factory()
        server.start(listener.factory())
        client.start(protocol)
        return client, protocol

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> list[Any]:
        addresses = self.names.get(host, ("127.0.0.1" if host == "localhost" else host,))
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (address, port),
            )
            for address in addresses
        ]

    # --- for tests ----------------------------------------------------------------------------------------
    def silence(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """From now on nothing arrives by the connections that are open, in these directions."""
        for client, server in self.connections:
            client.silent = client.silent or to_server
            server.silent = server.silent or to_client
