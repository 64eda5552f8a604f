"""Maps failed calls to the disk to the table of errors; only this module maps StorageError.

| failed operation | error |
| --- | --- |
| a write for which there is no space | DISK_FULL |
| a sync | STORE_FAILED: nothing is acknowledged any more; STORE_DELETED where the file was deleted |
| a call for which no descriptor, map or memory was free | RESOURCES_SCARCE; STORE_FAILED at a start or stop |
| any other call | `otherwise`: STORE_FAILED at a start or stop, UNKNOWN_ERROR while the store runs |
"""

from __future__ import annotations

from types import TracebackType

from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_store.files.files import DeletedError, StorageError


def failed_sync(error: BaseException | None) -> ErrorSpec:
    """The error of a store that has failed by this one."""
    return errors.STORE_DELETED if isinstance(error, DeletedError) else errors.STORE_FAILED


def reported(error: StorageError, what: str, otherwise: ErrorSpec, **fields: str) -> TroveError:
    """The error to report. `what` names the operation in a few words, e.g. "the append failed"."""
    spec = failed_sync(error) if error.sync_failed else otherwise
    spec = errors.DISK_FULL if error.disk_full else spec
    if error.scarce and spec is errors.UNKNOWN_ERROR:
        spec = errors.RESOURCES_SCARCE
    return TroveError(spec, f"{what}: {error}", **fields)


def raise_failed_sync(error: StorageError) -> None:
    """Raises TroveError STORE_FAILED, STORE_DELETED if a sync failed; any other call may be tried again."""
    if error.sync_failed:
        raise TroveError(failed_sync(error), str(error)) from error


class storage_errors:  # noqa: N801 (reads as a statement; a generator would cost each append a microsecond)
    """`with storage_errors("the append failed", errors.UNKNOWN_ERROR):` raises a StorageError as the error
    that reported() returns."""

    __slots__ = ("_otherwise", "_what")

    def __init__(self, what: str, otherwise: ErrorSpec) -> None:
        self._what, self._otherwise = what, otherwise

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, StorageError):
            raise reported(error, self._what, self._otherwise) from error
