"""Access key and secret as a file has them, one a line:

    access_key=admin
    secret_key=…

Empty lines and lines that begin with # are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and secret."""

    access_key: str
    secret_key: str = field(repr=False)


def parse_credentials(text: str) -> Credentials:
    """Reads the text of such a file. ValueError, whose message does not show the content."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or name not in ("access_key", "secret_key") or name in values or not value:
            raise ValueError(f"line {number} is not access_key=… or secret_key=…, each once")
        values[name] = value
    if len(values) != 2:
        raise ValueError("access_key or secret_key is missing")
    return Credentials(values["access_key"], values["secret_key"])


def credentials_text(credentials: Credentials) -> str:
    """The text of a file with these credentials."""
    return f"access_key={credentials.access_key}\nsecret_key={credentials.secret_key}\n"
