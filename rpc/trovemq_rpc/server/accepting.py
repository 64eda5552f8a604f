"""Accepts the connections of one socket.

The listeners of the event loops differ where no descriptor is free: uvloop's may stop for good, asyncio's
accepts a thousand connections in one iteration before any of them is counted.

Invariants
- While nothing is free for a connection, clients wait in the kernel; the listener tries again, and does not
  spin.
- At most AT_ONCE connections that nothing has counted yet are open.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Callable
from typing import Final

from trovemq_rpc.metrics import Metrics

AT_ONCE: Final = 16  # fewer than the descriptors that a daemon reserves
RETRY_S: Final = 0.25  # until descriptors may be free: clients hardly notice it
LOG_INTERVAL_S: Final = 10.0  # a lack that lasts must not fill a disk with log lines
SCARCE_NUMBERS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST, as a port with no listener

log = logging.getLogger("trovemq_rpc")


class Refusal:
    """Resets the connections of one socket, from start() to close(): its server is not ready for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
        self._loop = loop
        self._socket = listening

    def start(self) -> None:
        self._loop.add_reader(self._socket, self._refuse)

    def close(self) -> None:
        """The next clients wait in the kernel. The socket stays open."""
        self._loop.remove_reader(self._socket)

    def _refuse(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _peer = self._socket.accept()
            except OSError as error:
                if error.errno in SCARCE_NUMBERS:
                    self.close()  # else the loop would spin
                return
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            connection.close()


class Listener:
    """One socket that listens: it accepts from start() to close()."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        metrics: Metrics,
    ) -> None:
        self._loop = loop
        self._socket = listening
        self._make_protocol = make_protocol
        self._metrics = metrics
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._logged_s = float("-inf")

    def start(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Connections that were accepted stay."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _accept(self) -> None:
        while len(self._opening) < AT_ONCE:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if error.errno in SCARCE_NUMBERS:
                    self._wait(error)
                return  # none waits any more, or the one that waited is gone
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:  # it is gone, or nothing is free for its transport
            connection.close()
            self._metrics.accepts_failed += 1
            self._log(error)

    def _wait(self, error: OSError) -> None:
        self._metrics.accepts_failed += 1
        self._log(error)
        self._loop.remove_reader(self._socket)
        self._retry = self._loop.call_later(RETRY_S, self._resume)

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._socket, self._accept)

    def _log(self, error: OSError) -> None:
        now = self._loop.time()
        if now - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now
            log.warning("no connection can be accepted, it is tried again: %s", error)
