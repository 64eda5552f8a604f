"""Finds the credentials of a client's calls: in arguments, the environment, or a file; never on a command
line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from trovemq_proto import errors
from trovemq_proto.authentication.credentials import Credentials, parse_credentials
from trovemq_proto.errors import TroveError
from trovemq_proto.file_modes import warn_of_mode

ACCESS_KEY_VARIABLE: Final = "TROVEMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "TROVEMQ_SECRET_KEY"  # noqa: S105  its name
FILE_VARIABLE: Final = "TROVEMQ_CREDENTIALS"
FILE_SIZE_MAX: Final = 4_096


def find_credentials(access_key: str | None, secret_key: str | None, file: str | None) -> Credentials | None:
    """The first of: both given keys, the given file, both variables, the file that TROVEMQ_CREDENTIALS names.

    None if nothing is given. Raises TroveError REQUEST_ILLEGAL, without any secret, if only one key is given.
    """
    given = _pair(access_key, secret_key, "access_key and secret_key")
    if given is not None:
        return given
    if file:
        return read_credentials(file, "credentials_file")
    named = _pair(
        os.environ.get(ACCESS_KEY_VARIABLE),
        os.environ.get(SECRET_KEY_VARIABLE),
        f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}",
    )
    if named is not None:
        return named
    path = os.environ.get(FILE_VARIABLE)
    return read_credentials(path, FILE_VARIABLE) if path else None


def _pair(access_key: str | None, secret_key: str | None, names: str) -> Credentials | None:
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{names} are given together or not at all")
    return Credentials(access_key, secret_key)


def read_credentials(path: str, named_by: str = "") -> Credentials:
    """The credentials in a file; logs a warning if others may read it. `named_by`: the option or variable
    with its name. Raises TroveError REQUEST_ILLEGAL, which shows nothing of the file's content."""
    shown = f"{path} ({named_by})" if named_by else path
    warn_of_mode(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_SIZE_MAX).decode()
        return parse_credentials(content)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise TroveError(errors.REQUEST_ILLEGAL, f"{shown} cannot be read: {reason}") from None
    except ValueError as error:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{shown}: {error}") from None
