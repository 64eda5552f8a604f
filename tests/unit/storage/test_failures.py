"""A call to the disk that failed has one error of the table, for any caller."""

from __future__ import annotations

import errno

import pytest

from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_store.files.failures import raise_failed_sync, reported, storage_errors
from trovemq_store.files.files import StorageError


@pytest.mark.parametrize(
    ("operation", "number", "expected"),
    [
        ("write", errno.ENOSPC, errors.DISK_FULL),
        ("write", errno.EDQUOT, errors.DISK_FULL),
        ("write", errno.EIO, errors.UNKNOWN_ERROR),
        ("sync", errno.EIO, errors.STORE_FAILED),
        ("sync_directory", errno.EMFILE, errors.STORE_FAILED),
        ("open", errno.EMFILE, errors.RESOURCES_SCARCE),
        ("sync", errno.ENOSPC, errors.DISK_FULL),
    ],
)
def test_no_space_a_failed_sync_and_the_rest_are_distinguished(
    operation: str, number: int, expected: ErrorSpec
) -> None:
    failure = StorageError(operation, "config/topics.json", number)
    with pytest.raises(TroveError) as caught, storage_errors("the append failed", errors.UNKNOWN_ERROR):
        raise failure
    assert caught.value.spec is expected
    assert caught.value.message == f"the append failed: {failure}"
    assert caught.value.__cause__ is failure
    assert reported(failure, "x", errors.UNKNOWN_ERROR, file="a").fields == {"file": "a"}


def test_other_exceptions_pass_as_they_are() -> None:
    with pytest.raises(KeyError), storage_errors("the append failed", errors.UNKNOWN_ERROR):
        raise KeyError


def test_only_a_failed_sync_ends_what_may_be_tried_again() -> None:
    raise_failed_sync(StorageError("write", "a", errno.EIO))
    with pytest.raises(TroveError) as caught:
        raise_failed_sync(StorageError("sync", "a", errno.EIO))
    assert caught.value.spec is errors.STORE_FAILED
