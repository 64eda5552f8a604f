"""`trovemq server`: the command line of the broker."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Until the daemon installs its own handlers, Ctrl-C ends the process, even if it was inherited as
    # ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trovemq_broker.daemon.rocketmq_keys import IGNORED_KEYS
from trovemq_broker.daemon.settings import ENVIRONMENT_PREFIX, BrokerSettings
from trovemq_daemon.cli import command_line, exit_codes_help, run_cli
from trovemq_daemon.settings import Loaded, settings_of


def _run(loaded: Loaded[BrokerSettings]) -> int:
    if loaded.settings.is_node:
        from trovemq_broker.daemon.replica import node  # late: --help and --print-config need none of it

        return node.run(loaded.settings, loaded.written, loaded.sources)
    from trovemq_broker.daemon import app

    return app.run(loaded.settings, loaded.written, loaded.sources)


def broker(
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="gRPC address.")] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of /metrics and /readyz, or off.")
    ] = None,
    store: Annotated[str | None, typer.Option(metavar="DIR", help="Directory of the store.")] = None,
    nameserver: Annotated[
        str | None, typer.Option(metavar="HOST:PORT[,HOST:PORT]", help="Nameservers to register with.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of this broker.")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the cluster.")] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address in routes and records.")
    ] = None,
    tls_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The same services by TLS.")
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM certificate; none = one for development.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="PEM key of the certificate.")] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Allow listening on more than loopback.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="file.toml, or a RocketMQ broker.conf.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any setting, by our name or RocketMQ's; repeatable."
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show each setting with its source, and exit.")
    ] = False,
    log_level: Annotated[str | None, typer.Option(metavar="debug|info|warning|error")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="text|json")] = None,
) -> int:
    """The TroveMQ broker. Settings also come from the environment, for example TROVEMQ_BROKER_FLUSH_MODE."""
    flags = {key: value for key, value in dict(locals()).items() if key in settings_of(BrokerSettings)}
    return run_cli(
        BrokerSettings,
        _run,
        environment_prefix=ENVIRONMENT_PREFIX,
        config=config,
        assignments=set_ or (),
        flags=flags,
        ignored_keys=IGNORED_KEYS,
        print_config=print_config,
    )


def main(arguments: Sequence[str] | None = None, program: str = "trovemq server") -> None:
    """Runs the command line and exits. None: with the arguments of the process. program: its name in help."""
    epilog = exit_codes_help(with_store=True)
    command_line(broker, name="broker", epilog=epilog, arguments=arguments, program=program)


if __name__ == "__main__":
    main()
