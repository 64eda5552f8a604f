"""Reads the sources of settings: TOML file, RocketMQ `broker.conf`, environment, `--set NAME=VALUE`, flags.

Each reader returns assignments (name as written, raw value, source as it is shown); settings.py interprets
the names.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trovemq_daemon.errors import SettingsError

CONFIG_FILE_SIZE_MAX: Final = 1_048_576
# Kubernetes sets these variables in every container if a service has the name of our prefix.
_KUBERNETES_LINK: Final = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_[0-9]+_(TCP|UDP)(_.*)?)")


@dataclass(frozen=True, slots=True)
class Assignment:
    """One assignment `name` = `raw` from `source`."""

    name: str
    raw: object
    source: str


def read_config_file(path: Path) -> list[Assignment]:
    """Reads a TOML file (`.toml`), or properties as in RocketMQ's broker.conf (any other name). Raises
    SettingsError."""
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_FILE_SIZE_MAX + 1)
        if len(data) > CONFIG_FILE_SIZE_MAX:
            raise SettingsError(f"{path} is larger than {CONFIG_FILE_SIZE_MAX} bytes")
        text = data.decode("utf-8-sig")
        values = tomllib.loads(text) if path.suffix == ".toml" else parse_properties(text)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from None
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from None
    return [Assignment(name, raw, f"file {path}") for name, raw in values.items()]


def parse_properties(text: str) -> dict[str, str]:
    """Parses Java properties without line continuations and escapes, which broker.conf files do not use.

    The last of several equal keys counts, as in Java. Raises ValueError with the line's number.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        match = re.fullmatch(r"([^\s=:]+)\s*[=:]\s*(.*)", stripped)
        if match is None:
            raise ValueError(f"line {number} is not a key=value: {stripped[:80]!r}")
        values[match[1]] = match[2]
    return values


def read_environment(environment: Mapping[str, str], prefix: str) -> list[Assignment]:
    """The settings in the environment: PREFIX_FLUSH_MODE=sync sets flush_mode. PREFIX_CONFIG is not a
    setting, but names the file."""
    found = []
    for variable, value in sorted(environment.items()):
        name = variable.removeprefix(f"{prefix}_")
        if name not in (variable, "CONFIG") and not _KUBERNETES_LINK.fullmatch(name):
            found.append(Assignment(name, value, f"environment {variable}"))
    return found


def read_assignments(texts: Sequence[str]) -> list[Assignment]:
    """The values of `--set NAME=VALUE`. Raises SettingsError."""
    split = [text.partition("=") for text in texts]
    wrong = [
        text for text, (name, equals, _) in zip(texts, split, strict=True) if not equals or not name.strip()
    ]
    if wrong:
        raise SettingsError([f"--set {text!r} is not NAME=VALUE" for text in wrong])
    return [Assignment(name.strip(), value, f"--set {name.strip()}") for name, _, value in split]


def read_flags(flags: Mapping[str, object | None]) -> list[Assignment]:
    """The values of explicit options, by the name of their setting; None: not given."""
    return [
        Assignment(name, value, f"--{name.replace('_', '-')}")
        for name, value in flags.items()
        if value is not None
    ]
