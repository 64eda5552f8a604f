"""The host of a guest (guest.py): a connection of another protocol on the endpoint's transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trovemq_rpc.endpoint import Endpoint
from trovemq_rpc.rest import WORK_MAX
from trovemq_rpc.server.guest import Guest, MakeGuest


class GuestServer(Protocol):
    """`guests`: by the first byte of their connections; `explanations`: why others are refused, by theirs."""

    guests: dict[int, MakeGuest]
    explanations: dict[int, str]


class Hosting(Endpoint):
    """This part of ServerEndpoint."""

    server: GuestServer
    _guest: Guest | None = None

    @property
    def has_guest(self) -> bool:
        return self._guest is not None and not self.closing

    def begin_guest(self, make_guest: MakeGuest, data: memoryview) -> None:
        """`data`: its first bytes."""
        self._guest = make_guest(self)
        self._guest.receive(data)

    def pass_to_guest(self, data: memoryview) -> bool:
        """Whether the bytes are a guest's."""
        if self._guest is None:
            return False
        self.connection.work_remaining = WORK_MAX  # it bounds its work itself
        self._guest.receive(data)
        return True

    def lose_guest(self) -> None:
        if self._guest is not None:
            self._guest.lost()
            self._guest = None

    def drain_guest(self) -> bool:
        """Whether there is one."""
        if self._guest is None:
            return False
        self._guest.drain()
        return True

    def accepts_protocol(self, chosen: str | None) -> bool:
        return chosen == "h2" or (chosen is None and bool(self.server.guests or self.server.explanations))

    # --- the calls of the loop, for the guest -----------------------------------------------------------
    def tick(self, now: float) -> None:
        if self._guest is None:
            super().tick(now)
        else:
            self._guest.tick(now)

    def pause_writing(self) -> None:
        if self._guest is None:
            super().pause_writing()
        else:
            self._guest.writable(False)

    def resume_writing(self) -> None:
        if self._guest is None:
            super().resume_writing()
        else:
            self._guest.writable(True)

    def on_budget(self) -> None:
        if self._guest is None:
            super().on_budget()
        else:
            self._guest.budget_free()

    # --- the guest's calls ------------------------------------------------------------------------------
    @property
    def is_secure(self) -> bool:
        return self.tls is not None

    @property
    def unsent_size(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def send(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        if self.transport is None or self.closing:
            return
        if self.tls is not None:
            self.transport.write(self.tls.seal(pieces))
        else:
            self.transport.writelines(pieces)

    def pause(self) -> None:
        self.is_paused = True
        if self.transport is not None and self._rest.data is None and not self.closing:
            self.transport.pause_reading()

    def resume(self) -> None:
        self.is_paused = False
        if self.transport is not None and self._rest.data is None and not self.closing:
            self.transport.resume_reading()
