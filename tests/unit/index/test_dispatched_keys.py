"""A key index that gets a batch in one way is that which asked how many records it has."""

from __future__ import annotations

import errno
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from tests.support.projections import tree
from tests.unit.index.former_key_index import FormerIndex
from tests.unit.index.test_dispatched_units import STEPS, Log, Step, fresh
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.key_index import KeyIndex
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.settings import StoreSettings

SETTINGS: Final = StoreSettings(index_slot_count=16, index_item_count=60)


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


@given(steps=STEPS, operation=st.sampled_from(["create", "rename", "write"]), failing=st.integers(1, 20))
def test_keys_of_any_batch_are_those_of_its_own_form(steps: list[Step], operation: str, failing: int) -> None:
    disks = [MemoryFileSystem(), MemoryFileSystem()]
    files = [FaultyFileSystem(disk) for disk in disks]
    both = [
        kind(each, SETTINGS, lambda: "1" * 17)
        for kind, each in zip((FormerIndex, KeyIndex), files, strict=True)
    ]
    for index, each in zip(both, files, strict=True):
        index.load(None)
        each.decide = fail_at(operation, failing, errno.ENOSPC)
    log = Log()
    for step in steps:
        batch = log.batch(step)
        for _ in range(3):  # a failed one is applied again
            again = fresh(batch, step, plain=batch.physical_offset == both[0].position)
            assert applied(both[0], again) == applied(both[1], batch), step
            assert tree(disks[0], "index") == tree(disks[1], "index")
        if both[0].position < batch.end:
            break
