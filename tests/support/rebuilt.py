"""Rebuilding a store's consume queues and index in this process, and comparing the results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyarrow import fs

from trovemq_spark.job import NoProgress, Report
from trovemq_spark.log.sizes import FileSizes, complete
from trovemq_spark.rebuild.run import Parts, Rebuild, rebuild
from trovemq_spark.storage import StoragePath
from trovemq_spark.tasks import OneProcess


def rebuild_here(
    store: Path,
    out: Path | StoragePath,
    *,
    parts: Parts = "both",
    tags: bool = True,
    core_count: int = 1,
    **sizes: int,
) -> Report:
    """The job without Spark, planned for `core_count` cores: where segments are fewer they are cut small."""
    target = out if isinstance(out, StoragePath) else StoragePath(out)
    wanted = Rebuild(
        str(store), target, complete(FileSizes(**sizes), StoragePath(store)), parts, tags, part_size_min=100
    )
    runner = OneProcess(NoProgress())
    runner.core_count = core_count
    return rebuild(wanted, runner)


def files_of(root: Path) -> dict[str, bytes]:
    """Every file below a directory, by its path from there."""
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


def index_contents(root: Path) -> list[bytes]:
    """The index files, oldest first: their names are times of the process that made them."""
    return [path.read_bytes() for path in sorted((root / "index").iterdir()) if path.name.isdigit()]


class _RemotePlace(StoragePath):
    """A directory that stands for an object store's: reached through Arrow's file system alone."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._root = str(self._local)
        self._files: Any = fs.LocalFileSystem()
        self._local = None

    def __setstate__(self, text: str) -> None:
        self.__init__(text)  # type: ignore[misc]

    def child(self, name: str) -> StoragePath:
        return _RemotePlace(f"{self.text.rstrip('/')}/{name}")


@contextmanager
def remote(directory: Path) -> Iterator[StoragePath]:
    directory.mkdir()
    yield _RemotePlace(str(directory))
