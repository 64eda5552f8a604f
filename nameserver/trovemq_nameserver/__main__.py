"""`trovemq nameserver`: the command line of the nameserver."""

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

from trovemq_daemon.cli import command_line, exit_codes_help, run_cli
from trovemq_daemon.settings import Loaded, settings_of
from trovemq_nameserver.settings import ENVIRONMENT_PREFIX, IGNORED_KEYS, NameserverSettings


def _run(loaded: Loaded[NameserverSettings]) -> int:
    from trovemq_nameserver import app  # late: --help and --print-config need none of it

    return app.run(loaded.settings)


def nameserver(
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="gRPC address.")] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of /metrics and /readyz, or off.")
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
        Path | None, typer.Option(metavar="FILE", help="file.toml, or a RocketMQ namesrv.conf.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting; repeatable.")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show each setting with its source, and exit.")
    ] = False,
    log_level: Annotated[str | None, typer.Option(metavar="debug|info|warning|error")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="text|json")] = None,
) -> int:
    """The TroveMQ nameserver. Settings also come from the environment, as TROVEMQ_NAMESERVER_LISTEN."""
    flags = {key: value for key, value in dict(locals()).items() if key in settings_of(NameserverSettings)}
    return run_cli(
        NameserverSettings,
        _run,
        environment_prefix=ENVIRONMENT_PREFIX,
        config=config,
        assignments=set_ or (),
        flags=flags,
        ignored_keys=IGNORED_KEYS,
        print_config=print_config,
    )


def main(arguments: Sequence[str] | None = None, program: str = "trovemq nameserver") -> None:
    """Runs the command line and exits. None: with the arguments of the process. program: its name in help."""
    epilog = exit_codes_help(with_store=False)
    command_line(nameserver, name="nameserver", epilog=epilog, arguments=arguments, program=program)


if __name__ == "__main__":
    main()
