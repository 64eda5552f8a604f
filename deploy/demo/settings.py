"""The settings of `python -m deploy.demo`, by option or environment variable."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

ENVIRONMENT_PREFIX: Final = "TROVEMQ_DEMO_"


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Addresses are HOST:PORT, sizes bytes, counts entries. `set` continues to the broker as it is."""

    store: Path = Path("data")
    listen: str = "127.0.0.1:8081"
    http: str = "127.0.0.1:8080"
    nameserver: str = "127.0.0.1:9876"
    nameserver_http: str = "127.0.0.1:9877"
    console: str = "127.0.0.1:8090"
    name: str = "broker-a"
    log_level: str = "warning"
    commit_log_file_size: int = 64 << 20
    consume_queue_file_size: int = 20 * 30_000
    index_slot_count: int = 500_000
    index_item_count: int = 2_000_000
    set: tuple[str, ...] = ()
    once: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every address that must be free."""
        console = () if self.once else (self.console,)
        return (self.nameserver, self.nameserver_http, self.listen, self.http, *console)

    def broker_arguments(self) -> list[str]:
        """The broker's command line."""
        sizes = {
            "mappedFileSizeCommitLog": self.commit_log_file_size,
            "mappedFileSizeConsumeQueue": self.consume_queue_file_size,
            "maxHashSlotNum": self.index_slot_count,
            "maxIndexNum": self.index_item_count,
        }
        arguments = ["--listen", self.listen, "--http", self.http, "--store", str(self.store)]
        arguments += ["--nameserver", self.nameserver, "--name", self.name, "--log-level", self.log_level]
        console = () if self.once else (f"console_url=http://{self.console}",)
        defaults = (*(f"{name}={size}" for name, size in sizes.items()), "disk_warning_percent=99", *console)
        for assignment in (*defaults, *self.set):
            arguments += ["--set", assignment]
        return arguments

    def nameserver_arguments(self) -> list[str]:
        """The nameserver's command line."""
        return ["--listen", self.nameserver, "--http", self.nameserver_http, "--log-level", self.log_level]

    def console_arguments(self) -> list[str]:
        """The console's command line."""
        return ["--listen", self.console, "--nameserver", self.nameserver]


_HELP: Final = {
    "store": "the broker's store directory",
    "listen": "the broker's gRPC address",
    "http": "the broker's address for /readyz and /metrics",
    "nameserver": "the nameserver's gRPC address",
    "nameserver_http": "the nameserver's address for /readyz and /metrics",
    "console": "the console's address for browsers",
    "name": "the broker's name",
    "log_level": "the daemons' log level on standard error",
    "commit_log_file_size": "bytes of a commit log file",
    "consume_queue_file_size": "bytes of a consume queue file",
    "index_slot_count": "hash slots of an index file",
    "index_item_count": "items of an index file",
}


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> DemoSettings:
    """The settings: option before TROVEMQ_DEMO_NAME before default. Exits with 2 on wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.demo",
        description="Nameserver and broker on loopback, with 336,776 flights to look up.",
        epilog=f"Each option has an environment variable, for instance {ENVIRONMENT_PREFIX}STORE.",
    )
    defaults = DemoSettings()
    for field in fields(DemoSettings):
        if field.name in _HELP:
            default = getattr(defaults, field.name)
            given = environment.get(ENVIRONMENT_PREFIX + field.name.upper())
            parser.add_argument(
                "--" + field.name.replace("_", "-"),
                type=type(default) if not isinstance(default, Path) else Path,
                default=default if given is None else given,
                help=f"{_HELP[field.name]} (default {default})",
            )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the broker"
    )
    parser.add_argument("--once", action="store_true", help="stop after the examples instead of serving")
    values = vars(parser.parse_args(arguments))
    return DemoSettings(**{**values, "set": tuple(values["set"])})
