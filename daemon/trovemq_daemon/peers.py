"""The other end of a call: its address, the name in its certificate, and whether the connection is
private."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Peer:
    """`source`: its IP address, "" if it has none. `is_private`: the connection is by TLS or on this machine,
    so it cannot be read. `certificate_name`: the common name of its trusted certificate; "" if there is
    none, or several."""

    source: str
    is_private: bool
    certificate_name: str = ""


def peer_of_call(context: Any) -> Peer:
    """The peer of a call, from the context of either transport."""
    return peer_of(context.peer(), context.auth_context() or {})


def peer_of(name: str, security: Mapping[str, Iterable[bytes]]) -> Peer:
    """The peer from gRPC's name of it (`ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000`, `unix:…`) and from
    gRPC's properties of the connection's security."""
    plain = _plain_peer(name)
    if not _is_tls(security):
        return plain
    names = list(security.get("x509_common_name", ()))
    certificate_name = bytes(names[0]).decode("utf-8", "replace") if len(names) == 1 else ""
    return Peer(plain.source, True, certificate_name)


def came_by_tls(context: Any) -> bool:
    """Whether the connection of a call is by TLS, from the context of either transport."""
    return _is_tls(context.auth_context() or {})


def _is_tls(security: Mapping[str, Iterable[bytes]]) -> bool:
    return any(bytes(one) in (b"ssl", b"tls") for one in security.get("transport_security_type", ()))


@lru_cache(maxsize=4_096)
def _plain_peer(name: str) -> Peer:
    family, _, rest = name.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]") if family in ("ipv4", "ipv6") else ""
    address = parse_source(host)
    source = "" if address is None else str(address)
    local = family in ("unix", "unix-abstract") or (address is not None and address.is_loopback)
    return Peer(source, local)


@lru_cache(maxsize=4_096)
def parse_source(source: str) -> IpAddress | None:
    """The address; an IPv4 address in an IPv6 one is returned as IPv4. None if the text is not an address."""
    try:
        address = ipaddress.ip_address(source)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if address.version == 6 else None
    return mapped or address
