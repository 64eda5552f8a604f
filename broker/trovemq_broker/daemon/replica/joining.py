"""Empties a closed store whose log ends before the leader's begins, so that it continues where that begins.

The log goes last and from its end, so that a start after a kill finds a shorter log of the same epochs, and
joins again. `config/`, the node's state and the records of earlier cuts stay.
"""

from __future__ import annotations

from typing import Final

from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.frames import Offset
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.files import FileSystem
from trovemq_store.log import state
from trovemq_store.log.segments import DIRECTORY, NEW_PATH, OWN_DIRECTORY, file_name
from trovemq_store.replica.cut_records import DIRECTORY as CUT_DIRECTORY
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.replica_file import PATH, ReplicaFile

PROJECTIONS: Final = ("consumequeue", "index", "timerwheel")
_KEPT: Final = frozenset({PATH, "trovemq/broker.json", CUT_DIRECTORY})


def join_at(files: FileSystem, settings: BrokerSettings, begin: Offset, epochs: Epochs) -> None:
    """The log is empty afterwards and begins there, with these epochs; blocks. StorageError; TroveError
    STORE_DIVERGED: no segment begins there."""
    size = settings.commit_log_file_size
    saved = state.load(files)
    if saved is not None:
        size = saved.commit_log_file_size
    if begin % size:
        text = f"the leader's log begins at {begin}, where no segment of {size} bytes begins"
        raise TroveError(errors.STORE_DIVERGED, text)
    get_logger().warning("replica.joins", begin=begin)
    files.remove(state.PATH)
    files.sync_directory(OWN_DIRECTORY)
    for path in (*PROJECTIONS, *(f"{OWN_DIRECTORY}/{name}" for name in files.list(OWN_DIRECTORY))):
        if path not in _KEPT:
            _remove_all(files, path)
    for name in reversed(list(files.list(DIRECTORY))):
        files.remove(f"{DIRECTORY}/{name}")
    files.sync_directory("")
    file = files.create(NEW_PATH, size, preallocate=True)
    try:
        file.sync()
    finally:
        file.close()
    files.rename(NEW_PATH, f"{DIRECTORY}/{file_name(begin)}")
    files.sync_directory(DIRECTORY)
    ReplicaFile.open(files).begin_log(epochs)


def _remove_all(files: FileSystem, path: str) -> None:
    if files.is_directory(path):
        for name in list(files.list(path)):
            _remove_all(files, f"{path}/{name}")
        files.remove_directory(path)
    else:
        files.remove(path)
