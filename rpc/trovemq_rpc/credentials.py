"""TLS credentials with grpcio's function names, as ssl contexts."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class ServerCredentials:
    """A server's certificate and whom it trusts. Take `ssl_server_credentials`, or give a context
    of your own.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.use(context)

    def use(self, context: ssl.SSLContext) -> None:
        """For the connections that come from now on."""
        context.set_alpn_protocols(["h2"])
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)  # RFC 9113 section 9.2
        self.context = context


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
    """Of PEM bytes: (private key, certificate chain); mutual TLS by root certificates and
    `require_client_auth`. With `revocation_lists` a client's certificate must be one that its
    authority's newest list does not name; an authority without a list, or with one that is out of
    date, vouches for nobody.
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
    """Credentials of PEM bytes; without root certificates the system's are trusted."""
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
    """ssl reads certificates from files only: one in memory where the system has such."""
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
