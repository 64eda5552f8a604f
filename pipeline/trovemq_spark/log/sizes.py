"""The sizes of a store's files: the given ones, else those of the store's files, else RocketMQ's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.storage import StoragePath
from trovemq_store.check.store_view import infer_sizes
from trovemq_store.files.files import StorageError
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.index.consume_queue import UNIT_SIZE
from trovemq_store.log.segments import DIRECTORY
from trovemq_store.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Sizes by their names in trovemq_store.settings; 0 if the caller does not know them."""

    consume_queue_file_size: int = 0
    index_slot_count: int = 0
    index_item_count: int = 0

    def given(self) -> dict[str, int]:
        sizes = {name: getattr(self, name) for name in FileSizes.__slots__}
        return {name: size for name, size in sizes.items() if size}


def complete(sizes: FileSizes, store: StoragePath) -> FileSizes:
    """The sizes with every one known. Raises TroveError OPTION_ILLEGAL for an impossible size,
    STORE_SETTINGS_MISMATCH for one that differs from the store's files, STORE_NEWER, STORE_FAILED."""
    check_sizes(sizes)
    given = sizes.given()
    if store.local is not None and store.exists(DIRECTORY):
        try:
            settings = infer_sizes(ReadOnlyFileSystem(store.local), given)
        except StorageError as error:
            message = f"the sizes of the store's files cannot be read, give them: {error}"
            raise TroveError(errors.STORE_FAILED, message) from error
    else:
        settings = StoreSettings(**given)  # type: ignore[arg-type]  # only integer members
    return FileSizes(settings.consume_queue_file_size, settings.index_slot_count, settings.index_item_count)


def check_sizes(sizes: FileSizes) -> None:
    """Raises TroveError OPTION_ILLEGAL for a size that no file can have."""
    for name, size in sizes.given().items():
        if size < 0 or (name == "consume_queue_file_size" and size % UNIT_SIZE):
            wanted = f"a multiple of {UNIT_SIZE}" if name == "consume_queue_file_size" else "above 0"
            raise TroveError(errors.OPTION_ILLEGAL, f"{name} is {wanted}, not {size}", field=name)
    if sizes.index_item_count == 1:
        message = "index_item_count is at least 2: item 0 of a file is never used"
        raise TroveError(errors.OPTION_ILLEGAL, message, field="index_item_count")
