"""Addresses as grpc writes them: host:port, [::1]:port, unix:path, ipv4:host:port, ipv6:[host]:port."""

from __future__ import annotations

import os
import socket
import stat
from typing import Final

BACKLOG: Final = 1_024  # connections that wait in the kernel: clients often come together


def split_host_port(address: str, port_default: int | None = None) -> tuple[str, int]:
    """Without a port it is `port_default`; ValueError if there is none either."""
    host, colon, port = address.rpartition(":")
    if not colon or (port and not port.isdigit()) or (":" in host and not host.startswith("[")):
        if port_default is None:
            raise ValueError(f"{address!r} is not HOST:PORT")
        return address.strip("[]"), port_default
    return host.strip("[]"), int(port or port_default or 0)


def listen(address: str) -> tuple[list[socket.socket], int]:
    """Sockets that listen on an address, and their port (0 for unix). Clients wait in the kernel until the
    connections are accepted. RuntimeError if that fails, as in grpc: another socket has the address, or it is
    not of this machine.
    """
    try:
        if address.startswith(("unix:", "unix-abstract:")):
            return [_listen_unix(address)], 0
        for prefix in ("ipv4:", "ipv6:", "dns:///", "dns:"):
            address = address.removeprefix(prefix)
        return _listen_tcp(*split_host_port(address))
    except OSError as error:
        raise RuntimeError(f"Failed to bind to address {address}: {error}") from error


def _listen_tcp(host: str, port: int) -> tuple[list[socket.socket], int]:
    infos = socket.getaddrinfo(host or "::", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, where in dict.fromkeys(infos):
            bound = socket.socket(family, kind, protocol)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                any_address = host in {"", "::"}
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if any_address else 1)
            bound.setblocking(False)
            bound.bind((where[0], port, *where[2:]))
            bound.listen(BACKLOG)  # with SO_REUSEADDR only a socket that listens keeps others from the port
            port = bound.getsockname()[1]
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets, port


def _listen_unix(address: str) -> socket.socket:
    if address.startswith("unix-abstract:"):
        path = "\0" + address.removeprefix("unix-abstract:")
    else:
        path = address.removeprefix("unix:").removeprefix("//")
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.bind(path)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def name_of(address: object) -> str:
    """A socket's address as grpc names a peer."""
    if not isinstance(address, tuple):
        return f"unix:{address or ''}"
    host, port = address[0], address[1]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
