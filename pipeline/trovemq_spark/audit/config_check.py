"""Checks the small files beside log, queues and index: they can be read, and agree with the log."""

from __future__ import annotations

from typing import Final

from trovemq_proto.positions import EpochMs
from trovemq_spark.audit.found import FindingList
from trovemq_spark.audit.place_files import as_file_system
from trovemq_spark.audit.store import AuditedStore
from trovemq_store.check.log_rules import check_checkpoint
from trovemq_store.files.files import StorageError
from trovemq_store.files.sealed_json import check_seal
from trovemq_store.log import checkpoint
from trovemq_store.topics import lax_json

CONFIG_DIRECTORY: Final = "config"
OWN_DIRECTORY: Final = "trovemq"
_BINARY: Final = frozenset({"timercheck"})
_SEALED: Final = ("deletions.json", "state.json")


def check_small_files(store: AuditedStore, last_store_timestamp: int, found: FindingList) -> None:
    """last_store_timestamp: the latest of the log, epoch ms; 0: unknown, and not compared."""
    for entry in store.place.entries(CONFIG_DIRECTORY, recursive=True):
        name = entry.name.rpartition("/")[2]
        # RocketMQ leaves an empty file if it is killed while it creates one; then the second copy counts.
        if not entry.is_directory and entry.size and name not in _BINARY and _is_json(name):
            _check_json(store, entry.name, found.of("config"), sealed=False)
    for entry in store.place.entries(OWN_DIRECTORY):
        if entry.name.rpartition("/")[2].removesuffix(".bak") in _SEALED and entry.size:
            _check_json(store, entry.name, found.of("config"), sealed=True)
    _check_checkpoint(store, last_store_timestamp, found.of("checkpoint"))


def _is_json(name: str) -> bool:
    """RocketMQ's tables end in .json, except two."""
    bare = name.removesuffix(".bak")
    return bare.endswith(".json") or bare in ("timermetrics", "transactionMetrics")


def _check_json(store: AuditedStore, path: str, found: FindingList, *, sealed: bool) -> None:
    try:
        content = store.files.read_bytes(path)
        if sealed:
            check_seal(content)
        lax_json.parse(content)
    except (ValueError, StorageError) as error:
        found.add(path, 0, f"cannot be read: {error}")


def _check_checkpoint(store: AuditedStore, last_store_timestamp: int, found: FindingList) -> None:
    try:
        size = store.files.file_size(checkpoint.PATH)
        saved = checkpoint.load(as_file_system(store.files))
    except StorageError as error:
        found.add(checkpoint.PATH, 0, f"cannot be read: {error}", note=not store.clean)
        return
    if size != checkpoint.FILE_SIZE:
        found.add(checkpoint.PATH, 0, f"has {size} bytes, not {checkpoint.FILE_SIZE}")
    if last_store_timestamp:
        check_checkpoint(found, saved, EpochMs(last_store_timestamp), note=not store.clean)
