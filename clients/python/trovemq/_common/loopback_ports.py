"""Free TCP ports of the loopback interface, for daemons that are started here."""

from __future__ import annotations

import errno
import secrets
import socket
from typing import Final

LOOPBACK: Final = "127.0.0.1"
PORTS: Final = range(10_000, 32_768)  # below the range that Linux uses for outgoing connections


def kept_port() -> socket.socket:
    """A UDP socket with the number of a free TCP port. While it is open no process of the machine gets that
    number here: not even while the TCP port is free because its daemon restarts."""
    while True:
        kept = socket.socket(type=socket.SOCK_DGRAM)
        try:
            port = secrets.choice(PORTS)
            kept.bind((LOOPBACK, port))
            with socket.socket() as probe:
                probe.bind((LOOPBACK, port))
        except OSError as error:
            kept.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return kept


def port_of(kept: socket.socket) -> int:
    """The number of such a socket."""
    port: int = kept.getsockname()[1]
    return port
