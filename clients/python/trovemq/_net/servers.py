"""The name of a cluster: addresses, or a URL of addresses and options.

    127.0.0.1:9876            trovemq://ns1:9876,ns2:9876?tls=true&tls_ca=ca.pem
    ns1:9876,ns2:9876         trovemq://ACCESS_KEY:SECRET_KEY@broker-a?call_timeout_ms=2000

In a URL one host without a port is a broker (8081), several are nameservers (9876). A secret in a URL is
percent-encoded (`%40` for @); no error and no list shows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final
from urllib.parse import quote, unquote

from trovemq._common.arguments import check_texts
from trovemq.faults import Faults
from trovemq.options import ClientOptions
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.tls import TlsOptions

SCHEME: Final = "trovemq://"
_SECRET: Final = re.compile(r"^(trovemq://[^:@]*:).*@")
_NUMBERS: Final = tuple(one.name for one in fields(ClientOptions) if one.type == "int")
_MAY_BE_ZERO: Final = {"busy_poll_us", "max_lag_ms"}
_TLS_NAMES: Final = {
    "tls": "",
    "tls_ca": "ca",
    "tls_cert": "certificate",
    "tls_key": "key",
    "tls_server_name": "server_name",
}
_FILES: Final = {"tls_ca", "tls_cert", "tls_key"}
_FAULTS: Final = "faults"
_REPLICA: Final = "replica"
BROKER_PORT: Final = 8081
NAMESERVER_PORT: Final = 9876
"""For addresses in a URL without a port: one is a broker's, several are nameservers'."""


@dataclass(frozen=True, slots=True)
class Server:
    """The addresses of a cluster, and the client options of a URL."""

    addresses: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    tls: bool | TlsOptions | None = None
    keys: tuple[str, str] | None = field(default=None, repr=False)
    """Access key and secret key."""

    def options_over(self, options: ClientOptions | None) -> ClientOptions:
        """The caller's options with those of the URL; TLS and keys of the caller have priority."""
        options = options or ClientOptions()
        changed = dict(self.options)
        if options.tls is None:
            changed["tls"] = self.tls
        has_keys = options.access_key or options.secret_key or options.credentials_file
        if self.keys is not None and not has_keys:
            changed["access_key"], changed["secret_key"] = self.keys
        return replace(options, **changed)


def parse_server(server: str | Sequence[str]) -> Server:
    """Parses a server. Raises TroveError REQUEST_ILLEGAL for an illegal one."""
    if isinstance(server, str) and server.startswith(SCHEME):
        return _parse_url(server)
    if not isinstance(server, str):
        check_texts("server", server)
    parts = server.split(",") if isinstance(server, str) else list(server)
    return Server(_checked(parts))


def without_secret(server: str) -> str:
    """The URL without the secret key, to be shown."""
    return _SECRET.sub(r"\1***@", server)


def with_absolute_files(server: str) -> str:
    """The URL with absolute file names, so that it means the same in every directory; other names
    unchanged."""
    place, mark, query = server.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")]
    named = [
        f"{name}={quote(os.path.abspath(unquote(text)), safe='/')}"
        if name in _FILES
        else f"{name}{equals}{text}"
        for name, equals, text in pairs
    ]
    return f"{place}{mark}{'&'.join(named)}" if server.startswith(SCHEME) else server


def _checked(parts: Iterable[str]) -> tuple[str, ...]:
    """The addresses as HOST:PORT; empty parts are left out."""
    addresses = tuple(part.strip() for part in parts if part.strip())
    for address in addresses:
        host, separator, port = address.rpartition(":")
        is_port = port.isascii() and port.isdigit() and int(port) < 65536
        if not (host and separator and is_port) or "/" in host or "@" in host:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{address!r} is not HOST:PORT", server=address)
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            text = f"{address!r} is ambiguous: write an IPv6 address in brackets, [::1]:8081"
            raise TroveError(errors.REQUEST_ILLEGAL, text, server=address)
    if not addresses:
        raise TroveError(errors.REQUEST_ILLEGAL, "no server is given")
    return addresses


def _parse_url(url: str) -> Server:
    place, _, query = url.removeprefix(SCHEME).partition("?")
    user, at, place = place.rpartition("@")
    access_key, colon, secret_key = user.partition(":")
    if at and not (access_key and colon and secret_key):
        raise TroveError(errors.REQUEST_ILLEGAL, "a URL has ACCESS_KEY:SECRET_KEY before its @")
    keys = (unquote(access_key), unquote(secret_key)) if at else None
    hosts = [host.strip() for host in place.removesuffix("/").split(",") if host.strip()]
    port = BROKER_PORT if len(hosts) == 1 else NAMESERVER_PORT
    addresses = _checked(_with_port(host, port) for host in hosts)
    given = dict(_option(pair) for pair in query.split("&") if pair)
    tls = _tls({name: text for name, text in given.items() if name in _TLS_NAMES})
    options: dict[str, Any] = {name: _number(name, text) for name, text in given.items() if name in _NUMBERS}
    if _REPLICA in given:
        options[_REPLICA] = _switch(_REPLICA, given[_REPLICA])
    if _FAULTS in given:
        options[_FAULTS] = Faults.parse(given[_FAULTS])
    return Server(addresses, options, tls, keys)


def _with_port(host: str, port: int) -> str:
    """`[::1]` and `broker-a` get the port."""
    has_port = "]:" in host if host.startswith("[") else ":" in host
    return host if has_port else f"{host}:{port}"


def _option(pair: str) -> tuple[str, str]:
    name, _, text = pair.partition("=")
    known = sorted([*_NUMBERS, *_TLS_NAMES, _FAULTS, _REPLICA])
    if name not in known:
        raise TroveError(
            errors.REQUEST_ILLEGAL, f"a URL has no option {name[:80]!r}; it may have {', '.join(known)}"
        )
    return name, unquote(text)


def _number(name: str, text: str) -> int:
    least = 0 if name in _MAY_BE_ZERO else 1
    if not (text.isascii() and text.isdigit() and least <= int(text) < 1 << 31):
        raise TroveError(errors.REQUEST_ILLEGAL, f"{name}={text[:80]} is not a whole number from {least} on")
    return int(text)


def _switch(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise TroveError(errors.REQUEST_ILLEGAL, f"{name}={text[:80]} is neither true nor false")
    return text == "true"


def _tls(given: Mapping[str, str]) -> bool | TlsOptions | None:
    """The TLS options of a URL; None if it names none."""
    switch = given.get("tls", "true" if given else "")
    if switch:
        _switch("tls", switch)
    files = {_TLS_NAMES[name]: text for name, text in given.items() if name != "tls"}
    if switch == "true" and files:
        return TlsOptions(**files)
    return switch == "true" if switch else None
