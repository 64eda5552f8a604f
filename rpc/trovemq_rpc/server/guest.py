"""Another protocol on a port of the server: a connection belongs to it by its first byte.

The endpoint keeps the transport, TLS, the receive buffer and the counting of connections. The guest gets
plain bytes, and writes plain bytes. A connection that begins with any other byte is HTTP/2's.

    server.add_guest(0x00, make_guest)   before the server starts

Invariants
- A guest gets receive() from the first byte on, until lost(), which is its last call.
- Bytes that receive() does not use at once have to be copied: the buffer is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from trovemq_rpc.budget import BytesBudget, Holder


class Guest(Protocol):
    """A connection of another protocol."""

    def receive(self, data: memoryview) -> None: ...
    def writable(self, can_write: bool) -> None:
        """Whether the transport's buffer has space: the peer takes its bytes."""
        ...

    def tick(self, now: float) -> None:
        """Once a second. `now`: of the loop's clock."""
        ...

    def drain(self) -> None:
        """The server stops: no new requests; close() when those under way are answered."""
        ...

    def budget_free(self) -> None:
        """The budget has space again, after it was found to be used up."""
        ...

    def lost(self) -> None: ...


class Host(Holder, Protocol):
    """The endpoint, as its guest sees it."""

    budget: BytesBudget

    @property
    def is_secure(self) -> bool: ...
    @property
    def unsent_size(self) -> int:
        """Bytes that the peer has not taken."""
        ...

    def send(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None: ...
    def pause(self) -> None:
        """Reads no more, until resume()."""
        ...

    def resume(self) -> None: ...
    def refuse(self, reason: str) -> None:
        """Ends the connection, and logs why."""
        ...

    def close(self) -> None:
        """Ends it when its last bytes are sent."""
        ...

    def abort(self) -> None: ...


MakeGuest: TypeAlias = Callable[[Host], Guest]
