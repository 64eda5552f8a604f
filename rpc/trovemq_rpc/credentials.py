"""TLS credentials: grpcio's functions, and ssl contexts below them."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple


class ServerCredentials:
    """A server's certificate, and whom it trusts. Made by `ssl_server_credentials`, or of any ssl context."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.use(context)

    def use(self, context: ssl.SSLContext) -> None:
        """Takes another context for the connections that come from now on."""
        context.set_alpn_protocols(["h2"])
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)  # RFC 9113 section 9.2
        self.context = context


class SharedPort(NamedTuple):
    """A port for TLS and plain connections, by their first byte. `tls_only`: plain ones are refused."""

    credentials: ServerCredentials
    tls_only: bool


class ChannelCredentials:
    """Whom a channel trusts, and its certificate if it has one."""

    def __init__(self, context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["h2"])
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
        self.context = context


def ssl_server_credentials(
    private_key_certificate_chain_pairs: Sequence[tuple[bytes, bytes]],
    root_certificates: bytes | None = None,
    require_client_auth: bool = False,
    revocation_lists: bytes | None = None,
) -> ServerCredentials:
    """Credentials of PEM bytes: pairs of (private key, certificate chain). Mutual TLS needs
    `root_certificates` and `require_client_auth`.

    With `revocation_lists` a client is refused if the newest list of its authority names its certificate, and
    also if its authority has no list or one that is out of date.
    """
    if not private_key_certificate_chain_pairs:
        raise ValueError("at least one private key with its certificate chain is needed")
    if require_client_auth and root_certificates is None:
        raise ValueError("require_client_auth needs root_certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for private_key, chain in private_key_certificate_chain_pairs:
        _load(context, private_key, chain)
    if root_certificates is not None:
        context.load_verify_locations(cadata=root_certificates.decode())
        context.verify_mode = ssl.CERT_REQUIRED if require_client_auth else ssl.CERT_OPTIONAL
    if revocation_lists is not None:
        with _file(revocation_lists) as path:
            context.load_verify_locations(cafile=path)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return ServerCredentials(context)


def ssl_channel_credentials(
    root_certificates: bytes | None = None,
    private_key: bytes | None = None,
    certificate_chain: bytes | None = None,
) -> ChannelCredentials:
    """Credentials of PEM bytes. Without root certificates those of the system are trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if root_certificates is not None:
        context.load_verify_locations(cadata=root_certificates.decode())
    else:
        context.load_default_certs()
    if private_key is not None and certificate_chain is not None:
        _load(context, private_key, certificate_chain)
    elif private_key is not None or certificate_chain is not None:
        raise ValueError("private_key and certificate_chain belong together")
    return ChannelCredentials(context)


def _load(context: ssl.SSLContext, private_key: bytes, chain: bytes) -> None:
    with _file(private_key) as key_path, _file(chain) as chain_path:
        context.load_cert_chain(chain_path, key_path)


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """A file with this content, in memory if the system can: ssl reads certificates from files only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name
