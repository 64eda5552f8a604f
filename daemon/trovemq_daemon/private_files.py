"""Small files that only the user of this process may read: keys and credentials. They are outside of any
store."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final

from trovemq_daemon.errors import SettingsError
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.authentication.credentials import Credentials, parse_credentials
from trovemq_proto.errors import TroveError
from trovemq_proto.file_modes import mode_for_others

FILE_SIZE_MAX: Final = 4_096


def read_private(path: Path) -> bytes | None:
    """The content; None if there is no file. Logs a warning if others may read it. Raises TroveError
    STORE_FAILED."""
    warn_of_mode(path)
    try:
        with path.open("rb") as file:
            return file.read(FILE_SIZE_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TroveError(errors.STORE_FAILED, f"{path} cannot be read: {error.strerror}") from error


def warn_of_mode(path: Path) -> None:
    """Logs a warning if others may read a file with a secret; once for each file and mode."""
    mode = mode_for_others(path)
    if mode is not None:
        _warn(str(path), mode)


@functools.lru_cache(maxsize=1_024)
def _warn(path: str, mode: str) -> None:
    get_logger().warning(
        "secrets.readable_by_others",
        path=path,
        mode=mode,
        advice=f"it holds a secret, and others can read it: chmod 600 {path}",
    )


def read_credentials(path: Path, setting: str) -> Credentials:
    """Reads a credentials file that the setting names; blocks. Raises SettingsError, whose text shows nothing
    of its content."""
    shown = f"{setting} {path}"
    try:
        content = read_private(path)
        if content is None:
            raise SettingsError(f"{shown}: there is no such file")
        return parse_credentials(content.decode())
    except TroveError as error:
        raise SettingsError(f"{setting}: {error.message}") from None
    except ValueError as error:  # UnicodeDecodeError is a ValueError, too, and shows the bytes
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise SettingsError(f"{shown}: {reason}") from None


def write_private(path: Path, content: bytes) -> None:
    """Creates the file, which must not exist; it is on disk when this returns. Raises TroveError
    STORE_FAILED."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            assert os.write(descriptor, content) == len(content), "a small file is written at once"
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(new, path)
        new.unlink()
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise TroveError(errors.STORE_FAILED, f"{path} cannot be made: {error.strerror}") from error
