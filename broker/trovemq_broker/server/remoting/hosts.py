"""The host of a record for a client's address."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from trovemq_proto.errors import TroveError
from trovemq_proto.records import pack_host

NO_HOST: Final = bytes(8)


@lru_cache(maxsize=4_096)
def born_host_of(peer: str) -> bytes:
    """`peer`: as gRPC names it (ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000). Zeros if it has no address."""
    family, _, address = peer.partition(":")
    if family not in ("ipv4", "ipv6"):
        return NO_HOST
    try:
        return pack_host(unquote(address))
    except TroveError:
        return NO_HOST


def address_of(peer: str) -> str:
    """HOST:PORT, as RocketMQ's programs show it."""
    return unquote(peer.partition(":")[2])
