"""Checks a job's arguments before Spark is started, which takes many seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.archive.manifest import Manifest
from trovemq_spark.log.segments import LogDirectory
from trovemq_spark.storage import StoragePath
from trovemq_store.log.segments import DIRECTORY


def check_arguments(values: Any) -> None:
    """values: a job's arguments, which may have a method `check()`. Raises TroveError OPTION_ILLEGAL,
    STORE_FAILED if there is no log, ARCHIVE_ILLEGAL if there is no archive; OSError."""
    if check := getattr(values, "check", None):
        check()
    store, archive, out = (getattr(values, name, "") for name in ("store", "archive", "out"))
    for text in filter(None, (store, archive, out)):
        _check_place(text)
    if store:
        LogDirectory.open(store)
    if archive:
        Manifest.open(archive)
    if out:
        _check_outside(out, store)


def _check_place(text: str) -> None:
    try:
        StoragePath(text)
    except ValueError as error:
        raise TroveError(errors.OPTION_ILLEGAL, f"{text} is not a place that can be used: {error}") from error


def _check_outside(out: str, store: str) -> None:
    """Refuses an output in a store, which must contain only its broker's files."""
    local = StoragePath(out).local
    if local is None:
        root = store if store and f"{out}/".startswith(f"{store.rstrip('/')}/") else None
    else:
        root = _store_around(local.resolve(), store)
    if root is not None:
        raise TroveError(
            errors.OPTION_ILLEGAL,
            f"{out} lies in the store {root}, which is only read: name a directory outside of it",
            field="out",
        )


def _store_around(out: Path, store: str) -> str | None:
    """The store that contains `out`, also if only the store's log was named, or no store."""
    for path in (out, *out.parents):
        if (path / DIRECTORY).is_dir():
            return str(path)
    log = StoragePath(store).local if store else None
    return store if log is not None and out.is_relative_to(log.resolve()) else None
