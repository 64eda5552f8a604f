"""Finds out whether TLS is the reason that a server cannot be reached, by one connection to its port.

If only one of client and server uses TLS, gRPC reports no more than that a socket was closed. A connection of
our own, of which nothing but the first bytes is read, shows the reason.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from trovemq_proto.tls import ClientTls

LOOK_TIME_MAX_S: Final = 2.0
_PREFACE: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # and empty SETTINGS
)
_FRAME_HEADER_SIZE: Final = 9
_SETTINGS: Final = 4
# OpenSSL's numbers (X509_V_ERR_…).
_NOT_YET: Final = 9
_EXPIRED: Final = 10
_NAME_MISMATCHES: Final = (62, 64)  # of a host name, of an IP address
_NOT_TRUSTED: Final = (2, 18, 19, 20, 21)  # no issuer, self-signed, self-signed in the chain, …


async def explain(address: str, tls: ClientTls | None) -> str | None:
    """A sentence that says what to do; None if the reason is not TLS."""
    host, _, port_text = address.rpartition(":")
    host, port = host.removeprefix("[").removesuffix("]"), int(port_text)
    try:
        async with asyncio.timeout(LOOK_TIME_MAX_S):
            if tls is None:
                return await _explain_without_tls(host, port, address)
            return await _explain_tls(host, port, address, tls)
    except (OSError, TimeoutError):  # ssl's errors are OSErrors, too
        return None


async def _explain_without_tls(host: str, port: int, address: str) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent to it
    context.set_alpn_protocols(["h2"])
    try:
        await _first_bytes(host, port, context, host)
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return None
    return (
        f"{address} speaks TLS, and this client does not: "
        "connect with tls=True (--tls, TROVEMQ_TLS=1), or to the plain port"
    )


async def _explain_tls(host: str, port: int, address: str, tls: ClientTls) -> str | None:
    name = tls.server_name or host
    try:
        if await _first_bytes(host, port, tls.context(), name):
            return None
        return _explain_refusal("it ended the connection", address, tls)
    except ssl.SSLCertVerificationError as error:
        return _explain_certificate(error, address, name)
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            return _explain_refusal(error.reason, address, tls)
    except OSError:
        pass
    if not await _speaks_plainly(host, port):
        return None
    return (
        f"{address} speaks no TLS: connect without it (tls=False, --no-tls, TROVEMQ_TLS=0), "
        "or to the port that the daemon's tls_listen names"
    )


def _explain_certificate(error: ssl.SSLCertVerificationError, address: str, name: str) -> str:
    if error.verify_code in _NAME_MISMATCHES:
        return (
            f"the certificate of {address} is not for {name}: give the name that it has with server_name "
            "(--tls-server-name, TROVEMQ_TLS_SERVER_NAME), or the server a certificate for this one"
        )
    if error.verify_code == _EXPIRED:
        return f"the certificate of {address} has expired: give the server a new one"
    if error.verify_code == _NOT_YET:
        return f"the certificate of {address} is not valid yet: is the clock of this machine right?"
    if error.verify_code in _NOT_TRUSTED:
        return (
            f"the certificate of {address} is signed by no authority that is trusted here "
            f"({error.verify_message}): give its CA's certificate with ca (--tls-ca, TROVEMQ_TLS_CA)"
        )
    return f"the certificate of {address} is refused: {error.verify_message}"


def _explain_refusal(reason: str, address: str, tls: ClientTls) -> str:
    """The server ended the connection after the handshake, with or without an alert."""
    if tls.certificate is None:
        return (
            f"{address} asks for a client's certificate ({reason}): give one with certificate and key "
            "(--tls-cert and --tls-key, TROVEMQ_TLS_CERT and TROVEMQ_TLS_KEY)"
        )
    return (
        f"{address} refuses this client's certificate ({reason}): "
        "give one that its tls_client_ca has signed, and that has not expired"
    )


async def _first_bytes(host: str, port: int, context: ssl.SSLContext, name: str) -> bytes:
    """The server's first bytes by TLS; none if it ended the connection. A server with client authentication
    requests the certificate after the handshake."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    try:
        writer.write(_PREFACE)
        return await reader.read(_FRAME_HEADER_SIZE)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def _speaks_plainly(host: str, port: int) -> bool:
    """Whether HTTP/2's first frame comes without TLS."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_PREFACE)
        first = await reader.readexactly(_FRAME_HEADER_SIZE)
    except asyncio.IncompleteReadError:
        return False
    finally:
        writer.transport.abort()
    return first[3] == _SETTINGS
