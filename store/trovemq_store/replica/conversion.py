"""Makes the store of a single broker the first copy of a new replica group's log.

Each record of the log has to be of some epoch: else a copy that ends before the first leadership has records
and no epochs, and no common point with any other. So epoch 1 begins where the log begins. Two stores that
were converted both have such an epoch, with different records: the id of the group, which is made by chance,
keeps them apart (GROUP_MISMATCH).

One write of trovemq/replica.json: a crash leaves a single broker's store, or the group's. The call may be
repeated. No byte of the log changes.
"""

from __future__ import annotations

from typing import Final

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.replica_file import ReplicaFile

FIRST_EPOCH: Final = 1
ID_BYTES: Final = 16


def group_id(chance: bytes) -> str:
    """The id of a new group, from ID_BYTES random bytes. ValueError for another number of them."""
    if len(chance) != ID_BYTES:
        raise ValueError(f"{len(chance)} bytes for an id of {ID_BYTES}")
    return chance.hex()


def begin_group(replica: ReplicaFile, log_begin: PhysicalOffset, log_end: PhysicalOffset) -> Epochs:
    """Gives all records of the log an epoch, durably; returns the epochs. Epochs of a former group
    stay where each record has one. StorageError: the change may or may not be on disk."""
    epochs = replica.epochs.truncated(log_end)
    if log_begin == log_end:
        epochs = Epochs()
    elif not epochs.at(log_begin):
        epochs = Epochs.of([(max(FIRST_EPOCH, epochs.last), log_begin)])
    replica.begin_group(epochs)
    return epochs
