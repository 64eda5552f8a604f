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
from collections.abc import Callable
from typing import Final

from trovemq_rpc.metrics import Metrics

AT_ONCE: Final = 16  # fewer than the descriptors that a daemon reserves
RETRY_S: Final = 0.25  # until descriptors may be free: clients hardly notice it
LOG_INTERVAL_S: Final = 10.0  # a lack that lasts must not fill a disk with log lines
SCARCE_NUMBERS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger("trovemq_rpc")


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
