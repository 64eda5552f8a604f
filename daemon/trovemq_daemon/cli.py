"""The common part of both daemons' command lines: loads the settings, prints them, reports errors."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer

from trovemq_daemon.errors import SettingsError
from trovemq_daemon.lifecycle import ExitCode
from trovemq_daemon.logging import configure_logging, get_logger
from trovemq_daemon.private_files import warn_of_mode
from trovemq_daemon.setting_report import format_config
from trovemq_daemon.settings import Loaded, load_settings

S = TypeVar("S")

_STORE_EXIT_CODES = "3 store locked, 4 store of other settings or a newer version, 5 fatal storage error, "


def exit_codes_help(*, with_store: bool) -> str:
    """The exit codes that a daemon can end with, for its help."""
    store = _STORE_EXIT_CODES if with_store else ""
    return (
        "Exit codes: 0 clean stop, 1 unexpected error, 2 usage or settings, "
        f"{store}6 address in use, 128+N ended by a second signal N."
    )


def command_line(
    command: Callable[..., int],
    *,
    name: str,
    epilog: str,
    arguments: Sequence[str] | None = None,
    program: str,
) -> NoReturn:
    """Parses the arguments for a command that returns an exit code, runs it, and exits.

    Args:
        arguments: None: those of the process.
        program: the name in usage and help.
    """

    @functools.wraps(command)
    def exiting(*args: Any, **kwargs: Any) -> None:
        raise typer.Exit(command(*args, **kwargs))

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name=name, epilog=epilog)(exiting)
    app(args=None if arguments is None else list(arguments), prog_name=program)
    sys.exit(ExitCode.CLEAN)


def run_cli(
    cls: type[S],
    run: Callable[[Loaded[S]], int],
    *,
    environment_prefix: str,
    config: Path | None,
    assignments: Sequence[str],
    flags: Mapping[str, object | None],
    ignored_keys: Collection[str] = (),
    print_config: bool = False,
) -> int:
    """Loads the settings and runs the daemon with them (or prints them); returns the exit code.

    The settings class must have `log_level` and `log_format`.
    """
    if not __debug__:
        sys.stderr.write("error: assertions state the store's invariants: start Python without -O\n")
        return ExitCode.USAGE
    try:
        loaded: Loaded[S] = load_settings(
            cls,
            environment_prefix=environment_prefix,
            environment=os.environ,
            config=config,
            assignments=assignments,
            flags=flags,
            ignored_keys=ignored_keys,
        )
    except SettingsError as error:
        sys.stderr.writelines(f"error: {problem}\n" for problem in error.problems)
        return ExitCode.USAGE
    if print_config:
        sys.stdout.write(format_config(loaded) + "\n")
        sys.stderr.writelines(f"warning: {warning}\n" for warning in loaded.warnings)
        return ExitCode.CLEAN
    settings: Any = loaded.settings
    configure_logging(settings.log_level, settings.log_format)
    for warning in loaded.warnings:
        get_logger().warning("settings.ignored", message=warning)
    if loaded.secret_file is not None:
        warn_of_mode(loaded.secret_file)
    return run(loaded)
