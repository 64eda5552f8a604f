"""The options by which readers and writers of format `trovemq` connect: TLS, credentials and transport.

Options that are not given are read from the variables TROVEMQ_TLS, TROVEMQ_TLS_CA, TROVEMQ_ACCESS_KEY, … of
each process. Files are read on each machine. A secret cannot be an option, because Spark displays options.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, cast

from trovemq import ClientOptions, TlsOptions
from trovemq_proto.channels import TRANSPORTS, GrpcTransport
from trovemq_spark.option_kinds import BOOLEAN, TEXT, Kind, choice

Row = tuple[str, str, Kind, str, str]
# fmt: off
ROWS: Final[tuple[Row, ...]] = (
    ("tls", "tls", BOOLEAN, "", "connect by TLS; implied by one of the next four"),
    ("tlsCa", "tls_ca", TEXT, "", "PEM file of the certificates to trust; else the system's"),
    ("tlsCert", "tls_cert", TEXT, "", "PEM file of this client's certificate"),
    ("tlsKey", "tls_key", TEXT, "", "PEM file of its key"),
    ("tlsServerName", "tls_server_name", TEXT, "", "the name in the server's certificate; else the host"),
    ("credentialsFile", "credentials_file", TEXT, "", "file of access key and secret; else the environment"),
    ("grpcTransport", "grpc_transport", choice(*TRANSPORTS), "",
     "the transport of the calls; else TROVEMQ_GRPC_TRANSPORT, else trovemq"),
)
# fmt: on
"""Rows of the tables of options: name, field, kind, default, meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Their values; None if not given. Picklable."""

    tls: bool | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server_name: str | None = None
    credentials_file: str | None = None
    grpc_transport: str | None = None

    def connection(self) -> ConnectionOptions:
        """Only these options, without the others of a reader or writer."""
        return ConnectionOptions(**{field: getattr(self, field) for _, field, *_ in ROWS})

    def of_client(self, options: ClientOptions) -> ClientOptions:
        """The SDK's options with these set."""
        transport = cast("GrpcTransport | None", self.grpc_transport)
        return replace(
            options, tls=self._tls(), credentials_file=self.credentials_file, grpc_transport=transport
        )

    def _tls(self) -> bool | TlsOptions | None:
        given = TlsOptions(
            ca=self.tls_ca, certificate=self.tls_cert, key=self.tls_key, server_name=self.tls_server_name
        )
        return self.tls if self.tls is False or given == TlsOptions() else given


ENVIRONMENT_ALONE: Final = ConnectionOptions()
