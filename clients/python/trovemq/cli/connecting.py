"""The command line's options for transport, TLS and replicas; the first two win over their environment
variables."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

if TYPE_CHECKING:
    from trovemq import ClientOptions, TlsOptions

TransportOption = Annotated[
    str | None,
    typer.Option(
        "--grpc-transport",
        metavar="grpcio|trovemq",
        help="The gRPC implementation: trovemq or grpcio; else $TROVEMQ_GRPC_TRANSPORT, else trovemq.",
        show_default=False,
    ),
]
TlsOption = Annotated[
    bool | None,
    typer.Option("--tls/--no-tls", help="Connect by TLS; else as $TROVEMQ_TLS says.", show_default=False),
]
TlsCaOption = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="PEM certificates to trust; else $TROVEMQ_TLS_CA, else the system's.",
        show_default=False,
    ),
]
TlsCertOption = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="PEM certificate of this client; else $TROVEMQ_TLS_CERT.",
        show_default=False,
    ),
]
TlsKeyOption = Annotated[
    str | None,
    typer.Option(
        "--tls-key", metavar="FILE", help="PEM key of --tls-cert; else $TROVEMQ_TLS_KEY.", show_default=False
    ),
]
TlsServerNameOption = Annotated[
    str | None,
    typer.Option(
        "--tls-server-name",
        metavar="NAME",
        help="Name in the server's certificate; else $TROVEMQ_TLS_SERVER_NAME, else the host.",
        show_default=False,
    ),
]

ReplicaOption = Annotated[
    bool | None,
    typer.Option(
        "--replica",
        help="Reads: of the node that --server names, also where it does not lead.",
        show_default=False,
    ),
]
MaxLagOption = Annotated[
    int | None,
    typer.Option(
        "--max-lag-ms",
        metavar="MS",
        min=0,
        help="Reads: refuse a replica with a longer lag.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Connecting:
    """The options that were given at one place of the command line; None = not given there."""

    grpc_transport: TransportOption = None
    tls: TlsOption = None
    tls_ca: TlsCaOption = None
    tls_cert: TlsCertOption = None
    tls_key: TlsKeyOption = None
    tls_server_name: TlsServerNameOption = None
    replica: ReplicaOption = None
    max_lag_ms: MaxLagOption = None

    def over(self, outer: Connecting) -> Connecting:
        """These options; those of the outer command where one is not given."""
        values = {
            name: getattr(outer, name) if (own := getattr(self, name)) is None else own for name in NAMES
        }
        return Connecting(**values)

    def client_options(self) -> ClientOptions | None:
        """The SDK's options; None if nothing is given. Raises TroveError TLS_OPTION_ILLEGAL,
        REQUEST_ILLEGAL."""
        if self == NOTHING_GIVEN:
            return None
        from trovemq import ClientOptions
        from trovemq_proto.channels import chosen_transport

        return ClientOptions(
            tls=self._tls(),
            grpc_transport=chosen_transport(self.grpc_transport),
            replica=bool(self.replica),
            max_lag_ms=self.max_lag_ms or 0,
        )

    def _tls(self) -> bool | TlsOptions | None:
        given = (self.tls_ca, self.tls_cert, self.tls_key, self.tls_server_name)
        if self.tls is False or given == (None,) * len(given):
            return self.tls
        from trovemq_proto.tls import VARIABLE, TlsOptions, options_of_environment

        outer = options_of_environment({**os.environ, VARIABLE: "1"}) or TlsOptions()
        return TlsOptions(
            ca=self.tls_ca or outer.ca,
            certificate=self.tls_cert or outer.certificate,
            key=self.tls_key or outer.key,
            server_name=self.tls_server_name or outer.server_name,
        )


NOTHING_GIVEN: Final = Connecting()
NAMES: Final = tuple(field.name for field in fields(Connecting))


def verb_parameters() -> Iterator[inspect.Parameter]:
    """The options as parameters of a verb: they may follow it, but only `trovemq --help` shows them."""
    for name, annotation in inspect.get_annotations(Connecting, eval_str=True).items():
        kind, option = get_args(annotation)
        hidden: Any = copy.copy(option)
        hidden.hidden = True
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, hidden]
        )
