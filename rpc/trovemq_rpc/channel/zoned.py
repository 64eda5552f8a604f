"""Connects to an IPv6 address with a zone. uvloop loses the zone, and takes another interface."""

from __future__ import annotations

import asyncio
import errno
import os
import socket


async def connected_socket(host: str, port: int) -> socket.socket:
    """A connected socket; OSError."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, kind, protocol, _, where = infos[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(where)
        if code == errno.EINPROGRESS:
            await _writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(sock, on_ready)
    try:
        await ready
    finally:
        loop.remove_writer(sock)
