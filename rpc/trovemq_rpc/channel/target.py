"""Targets in gRPC's notation (doc/naming.md), and their addresses.

| target                                        | means                       |
|-----------------------------------------------|-----------------------------|
| host:port, dns:host:port, dns:///host:port    | all addresses of a name     |
| ipv4:a:port,b:port and ipv6:[a]:port,[b]:port | these addresses             |
| unix:path, unix:///path, unix-abstract:name   | a socket in the file system |

The port is 443 where none is named, as in grpc. An IPv6 address may name its zone: `[fe80::1%eth0]:8081`,
or as in a URI `[fe80::1%25eth0]:8081`. The zone has a meaning on this machine alone: it is in no header, and
is not compared with a certificate.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final, NamedTuple

from trovemq_rpc.listening import split_host_port

PORT_DEFAULT: Final = 443  # of HTTPS, as gRPC has it


class Address(NamedTuple):
    """A place to connect to: a host and a port, or (`unix`) a path."""

    host: str
    port: int
    unix: str = ""

    def __str__(self) -> str:
        if self.unix:
            return f"unix:{self.unix}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Target:
    """A parsed target. ValueError if the text is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.addresses: list[Address] = []
        self.name: Address | None = None
        if text.startswith("unix-abstract:"):
            self.addresses = [Address("", 0, "\0" + text.removeprefix("unix-abstract:"))]
        elif text.startswith("unix:"):
            path = text.removeprefix("unix:")
            self.addresses = [Address("", 0, path.removeprefix("//") if path.startswith("///") else path)]
        elif text.startswith(("ipv4:", "ipv6:")):
            self.addresses = [_parse(part) for part in text[5:].split(",")]
        else:
            name = text.removeprefix("dns:").removeprefix("///")
            self.name = _parse(name)

    @property
    def authority(self) -> str:
        """The value of :authority, unless an option gives it."""
        first = self.name or self.addresses[0]
        return "localhost" if first.unix else str(first._replace(host=self.host))

    @property
    def host(self) -> str:
        """The name that a certificate must have."""
        first = self.name or self.addresses[0]
        return _without_zone(first.host) or "localhost"

    async def resolve(self) -> list[Address]:
        """All addresses, IPv6 and IPv4 alternately: a family that does not work costs one attempt."""
        if self.name is None:
            return self.addresses
        if ":" in self.name.host:
            return [self.name]  # an address, perhaps with a zone, which uvloop's look-up loses
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(self.name.host, self.name.port, type=socket.SOCK_STREAM)
        six = [_address(info[4]) for info in infos if info[0] == socket.AF_INET6]
        four = [_address(info[4]) for info in infos if info[0] == socket.AF_INET]
        first, second = (six, four) if infos and infos[0][0] == socket.AF_INET6 else (four, six)
        mixed: list[Address] = []
        for at in range(max(len(first), len(second))):
            mixed += first[at : at + 1] + second[at : at + 1]
        return list(dict.fromkeys(mixed))


def _parse(text: str) -> Address:
    host, port = split_host_port(text, PORT_DEFAULT)
    return Address(host.replace("%25", "%") if ":" in host else host, port)


def _without_zone(host: str) -> str:
    return host.partition("%")[0] if ":" in host else host


def _address(where: Any) -> Address:
    return Address(where[0], where[1])
