"""The console's options."""

from __future__ import annotations

import ipaddress
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_USER_INFO: Final = re.compile(r"^trovemq://[^/?]*@")
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """How a console serves.

    Attributes:
        server: The cluster: addresses of nameservers or a broker, or a URL.
        host: The address that it listens on, with `port`.
        allow_changes: Whether acts that change something are served.
        tls: PEM files of a certificate and its key; None for plain HTTP.
        host_names: Further host names that browsers may use.
        sign_in_token: Every browser must present it; None: there is no sign-in.
    """

    server: str
    host: str = "127.0.0.1"
    port: int = 8090
    allow_changes: bool = False
    tls: tuple[Path, Path] | None = None
    host_names: tuple[str, ...] = ()
    sign_in_token: str | None = field(default=None, repr=False)

    @property
    def scheme(self) -> str:
        """The scheme of the console's own address."""
        return "http" if self.tls is None else "https"

    @property
    def shown_server(self) -> str:
        """The cluster's address without credentials."""
        return _USER_INFO.sub("trovemq://", self.server)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The given servers, HOST:PORT each."""
        place = self.shown_server.removeprefix("trovemq://").partition("?")[0].rstrip("/")
        return tuple(address.strip() for address in place.split(",") if address.strip())

    @property
    def may_show_secrets(self) -> bool:
        """A secret on a page goes over TLS, or does not leave the machine."""
        return self.tls is not None or is_loopback(self.host)

    def with_port(self, port: int) -> ConsoleSettings:
        """The settings with the port that the system chose."""
        return ConsoleSettings(
            self.server, self.host, port, self.allow_changes, self.tls, self.host_names, self.sign_in_token
        )

    def allowed_hosts(self) -> frozenset[str]:
        """The values of `Host` that are served, in lower case; any other may be another site's name."""
        names = {self.host, *self.host_names}
        if self.host in LOOPBACK:
            names |= LOOPBACK
        hosts = {f"[{name}]" if ":" in name else name for name in names}
        default_port = 443 if self.tls else 80
        bare = hosts if self.port == default_port else set()
        return frozenset(host.lower() for host in {f"{host}:{self.port}" for host in hosts} | bare)

    def command(self, *words: str) -> str:
        """A command line for this cluster."""
        return shlex.join(["trovemq", *words, "--server", self.shown_server])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK
