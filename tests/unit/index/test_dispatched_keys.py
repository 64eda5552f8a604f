"""A key index that gets a batch in any form is that which gets its bytes alone."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.projections import tree
from tests.unit.index.test_dispatched_units import FORMS, STEPS, Log, Step
from trovemq_proto.records import RecordBatch
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.key_index import KeyIndex
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.settings import StoreSettings

SETTINGS: Final = StoreSettings(index_slot_count=16, index_item_count=60)


def bytes_of(batch: DispatchBatch) -> DispatchBatch:
    """The batch as recovery reads it: without the columns and rows of its form."""
    return replace(batch, records=RecordBatch.split(batch.records.data))


def applied(index: KeyIndex, batch: DispatchBatch) -> object:
    """All that a caller sees afterwards, and where the index would continue."""
    try:
        index.apply(batch)
        error = None
    except StorageError as caught:
        error = str(caught)
    return (
        error,
        index.position,
        index._resume,
        index.file_names,
        index.take_full_files(),
        index.create_failures,
    )


@pytest.mark.parametrize("form", FORMS)
@given(steps=STEPS, operation=st.sampled_from(["create", "rename", "write"]), failing=st.integers(1, 20))
def test_keys_of_any_form_of_a_batch_are_those_of_its_bytes(
    form: str, steps: list[Step], operation: str, failing: int
) -> None:
    disks = [MemoryFileSystem(), MemoryFileSystem()]
    files = [FaultyFileSystem(disk) for disk in disks]
    both = [KeyIndex(each, SETTINGS, lambda: "1" * 17) for each in files]
    for index, each in zip(both, files, strict=True):
        index.load(None)
        each.decide = fail_at(operation, failing, errno.ENOSPC)
    log = Log()
    for step in steps:
        batch = log.batch(step, form)
        for _ in range(3):  # a failed one is applied again
            assert applied(both[0], bytes_of(batch)) == applied(both[1], batch), step
            assert tree(disks[0], "index") == tree(disks[1], "index")
        if both[0].position < batch.end:
            break
