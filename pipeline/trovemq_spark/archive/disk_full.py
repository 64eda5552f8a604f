"""Reports a full disk as DISK_FULL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.storage import StoragePath
from trovemq_store.files.files import DISK_FULL_NUMBERS


@contextmanager
def reporting_disk_full(place: StoragePath) -> Iterator[None]:
    """Raises an OSError that means "no space" as TroveError DISK_FULL; other errors stay as they are."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_NUMBERS:
            raise
        raise TroveError(
            errors.DISK_FULL,
            f"no space in {place} ({error.strerror or error}): nothing of this step counts, earlier "
            "commits stay",
            path=place,
        ) from error
