"""HOST:PORT in settings: parsing, checks of listen addresses, advertised addresses.

An IPv6 host before a port is in brackets: `[::1]:8081`.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from trovemq_daemon.errors import SettingsError
from trovemq_daemon.logging import get_logger

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """A host (name, IPv4 or IPv6 without brackets) and a port, 0..65535; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The host as an IP address; None if it is a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def is_loopback(self) -> bool:
        ip = self.ip
        return ip.is_loopback if ip is not None else self.host.lower() == "localhost"

    @property
    def is_unspecified(self) -> bool:
        """True for 0.0.0.0 and [::], which mean every address of the machine and cannot be dialled."""
        ip = self.ip
        return ip is not None and ip.is_unspecified

    @property
    def is_ipv6(self) -> bool:
        ip = self.ip
        return ip is not None and ip.version == 6

    @property
    def canonical(self) -> Address:
        """The same for all texts of one address: small letters, and `localhost` for a loopback address."""
        if self.is_loopback:
            return Address("localhost", self.port)
        ip = self.ip
        return Address(self.host.lower() if ip is None else str(ip), self.port)

    def with_port(self, port: int) -> Address:
        return Address(self.host, port)


def parse_host(text: str) -> str:
    """Parses a host name or an IP address; brackets are removed. Raises SettingsError."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in host or re.fullmatch(r"[0-9.]+", host):
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            raise SettingsError(f"{text!r} is not an IP address") from None
    if not _HOST_NAME.fullmatch(host):
        raise SettingsError(f"{text!r} is neither a host name nor an IP address")
    return host


def parse_address(text: str) -> Address:
    """Parses HOST:PORT or [IPV6]:PORT. Raises SettingsError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or text.rstrip().endswith("]"):
        raise SettingsError(f"{text!r} is not HOST:PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise SettingsError(f"{text!r} is ambiguous: write an IPv6 address in brackets, [::1]:8081")
    if not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise SettingsError(f"{text!r} has no port between 0 and {_PORT_MAX}")
    return Address(parse_host(host), int(port))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parses several HOST:PORT, separated by commas or (as in RocketMQ) semicolons; empty parts are
    skipped."""
    parts = (part.strip() for part in re.split("[,;]", text))
    return tuple(dict.fromkeys(parse_address(part) for part in parts if part))


def parse_advertise(text: str, port: int) -> Address:
    """Parses HOST:PORT, or a bare HOST (as in RocketMQ's brokerIP1), which gets the given port."""
    text = text.strip()
    bare = text.count(":") > 1 and not text.startswith("[")
    if bare or ":" not in text or text.endswith("]"):
        return Address(parse_host(text), port)
    address = parse_address(text)
    return address if address.port else address.with_port(port)


def check_listen(what: str, address: Address, *, insecure: bool, authentication: str = "") -> None:
    """Accepts only loopback, unless `insecure` is set, because calls are not authenticated.
    `authentication`: the setting by which they are. Raises SettingsError."""
    if not address.is_loopback and not insecure:
        remedy = f"set {authentication} (docs/security.md), " if authentication else ""
        raise SettingsError(
            f"{what} {address} is open to other machines, whose calls are not authenticated: "
            f"{remedy}listen on 127.0.0.1 or [::1], or give --insecure if the network is trusted"
        )


def warn_of_open(addresses: Mapping[str, Address | None]) -> None:
    """Logs each of these addresses that other machines reach, by the name of its setting. Their calls are not
    authenticated."""
    for setting, address in addresses.items():
        if address is not None and not address.is_loopback:
            get_logger().warning(
                "access.open",
                setting=setting,
                address=str(address),
                message="every client that reaches this address is served: callers are not authenticated",
            )


def parse_http(text: str) -> Address | None:
    """The address of the operations HTTP; None for `off`. Raises SettingsError."""
    return None if text.casefold() == "off" else parse_address(text)


def with_port(text: str, listen: str) -> str:
    """Converts RocketMQ's listenPort, which changes only the port of `listen`."""
    return f"{listen.rpartition(':')[0]}:{text.strip()}"


def check_advertise(listen: Address, advertise: str) -> None:
    """The checks of `--advertise` that are possible before the port is bound. Raises SettingsError."""
    if not advertise and listen.is_unspecified:
        raise SettingsError(
            f"listening on {listen} means every address of this machine: "
            "say with --advertise HOST:PORT (brokerIP1) which one clients shall dial"
        )
    if advertise and parse_advertise(advertise, listen.port).is_unspecified:
        raise SettingsError(f"{advertise!r} cannot be advertised: clients cannot dial it")


def advertised_address(bound: Address, advertise: str) -> Address:
    """The address for routes: `advertise` if given, else the bound one (with its real port).

    Raises SettingsError if clients could not dial it.
    """
    check_advertise(bound, advertise)
    return parse_advertise(advertise, bound.port) if advertise else bound


def resolve_ip(address: Address) -> Address:
    """The address with an IP address as its host: records have their store's address in 4 or 16 bytes.

    A name is looked up, which blocks; IPv4 is preferred. Raises OSError while the name is unknown,
    SettingsError if it cannot be a name.
    """
    if address.ip is not None:
        return address
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise SettingsError(f"{address.host!r} is not a host name: {error}") from None
    hosts = sorted((entry[0] != socket.AF_INET, str(entry[4][0])) for entry in found)
    return Address(hosts[0][1], address.port)
