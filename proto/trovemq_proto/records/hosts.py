"""Host addresses as a record stores them.

| offset | width    | field   |
|--------|----------|---------|
| 0      | 4 or 16  | address |
| 4, 16  | i32      | port    |
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.layout import HOST_SIZE_IPV4, HOST_SIZE_IPV6

_PORT_MAX: Final = 65_535


def pack_host(text: str) -> bytes:
    """`1.2.3.4:80` -> 8 bytes, `[::1]:80` -> 20 bytes. Raises TroveError REQUEST_ILLEGAL."""
    address, separator, port = text.rpartition(":")
    is_ipv6 = address.startswith("[") and address.endswith("]")
    if not separator or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > _PORT_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{text!r} is not a host: expected address:port", host=text)
    try:
        packed = ip_address(address[1:-1] if is_ipv6 else address).packed
    except ValueError as error:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{text!r} is no host: {error}", host=text) from error
    if is_ipv6 != (len(packed) == 16):
        raise TroveError(errors.REQUEST_ILLEGAL, f"{text!r} is not a host: IPv6 takes brackets", host=text)
    return packed + int(port).to_bytes(4)


@lru_cache(maxsize=4096)
def format_host(host: bytes) -> str:
    """8 or 20 bytes -> `1.2.3.4:80` or `[0:0:0:0:0:0:0:1]:80` (Java's form: no group left out)."""
    port = int.from_bytes(host[-4:], signed=True)
    if len(host) == HOST_SIZE_IPV4:
        return f"{host[0]}.{host[1]}.{host[2]}.{host[3]}:{port}"
    assert len(host) == HOST_SIZE_IPV6, f"host of {len(host)} bytes"
    groups = ":".join(f"{int.from_bytes(host[i : i + 2]):x}" for i in range(0, 16, 2))
    return f"[{groups}]:{port}"
