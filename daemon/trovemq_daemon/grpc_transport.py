"""The implementation of gRPC: grpcio's C core, or `trovemq_rpc`. All differences of the two for a daemon are
here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import grpc

import trovemq_rpc
from trovemq_daemon.tls import TlsIdentity
from trovemq_proto.channels import GrpcTransport

__all__ = ["GrpcTransport", "is_end", "new_server", "server_credentials"]


def new_server(transport: GrpcTransport, options: Sequence[tuple[str, Any]], calls_max: int) -> Any:
    """A server with grpc.aio's interface. `calls_max`: calls and streams open at once."""
    if transport == "trovemq":
        return trovemq_rpc.server(options=options, maximum_concurrent_rpcs=calls_max)
    return grpc.aio.server(options=options, maximum_concurrent_rpcs=calls_max)


class ServerCredentials(Protocol):
    """The certificate of a TLS port, and the authorities that it trusts."""

    @property
    def credentials(self) -> Any:
        """The argument for `add_secure_port` of the transport's server."""
        ...

    def replace(self, identity: TlsIdentity) -> None:
        """Replaces the certificate for later connections. Raises ValueError, ssl.SSLError if it cannot be
        used."""
        ...


def server_credentials(transport: GrpcTransport, identity: TlsIdentity) -> ServerCredentials:
    """The credentials for that transport. The first identity decides whether clients are asked for
    certificates."""
    return _OwnCredentials(identity) if transport == "trovemq" else _GrpcioCredentials(identity)


class _OwnCredentials:
    def __init__(self, identity: TlsIdentity) -> None:
        self.credentials: Final = self._made(identity)

    def replace(self, identity: TlsIdentity) -> None:
        self.credentials.use(self._made(identity).context)

    @staticmethod
    def _made(identity: TlsIdentity) -> trovemq_rpc.ServerCredentials:
        pairs = [(identity.key, identity.certificate)]
        return trovemq_rpc.ssl_server_credentials(
            pairs, identity.client_ca, identity.client_ca is not None, identity.client_crl
        )


class _GrpcioCredentials:
    """grpcio fetches the certificate at each handshake, in its own threads. It takes no revocation lists from
    Python."""

    def __init__(self, identity: TlsIdentity) -> None:
        assert identity.client_crl is None, "the settings refuse it"
        self._next: Any = None
        self.credentials: Final = grpc.dynamic_ssl_server_credentials(
            _configuration(identity), self._fetch, identity.client_ca is not None
        )

    def replace(self, identity: TlsIdentity) -> None:
        _OwnCredentials(identity)  # raises for a certificate that cannot be used; grpcio does not report it
        self._next = _configuration(identity)

    def _fetch(self) -> Any:
        """The new configuration; None: it is unchanged."""
        fetched, self._next = self._next, None
        return fetched


def _configuration(identity: TlsIdentity) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(identity.key, identity.certificate)], identity.client_ca
    )


def is_end(request: object) -> bool:
    """Whether `context.read()` found the end of the client's requests."""
    return request is grpc.aio.EOF or request is trovemq_rpc.EOF
