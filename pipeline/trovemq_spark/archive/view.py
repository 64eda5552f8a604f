"""The committed files also under names that other programs expect: `topic=T/date=YYYY-MM-DD/NAME.parquet`.

On local paths these are links to the files of the manifest, which take no space. A glob such as
`ARCHIVE/topic=*/date=*/*.parquet` or `ARCHIVE/**/*.parquet`, and a program that finds Hive's partitions, see
every row at most once and no unfinished file, at every moment: old links are removed before new ones are
made. They may miss rows of a commit whose links are not made yet (if a run was killed there, the next run
makes them), and rows of the partition that `compact` is changing. If a link is removed between a reader's
listing and its opening, the reader gets an error and no wrong answer. The manifest has neither gap. Rows of
damage have no link. There are no links on object stores: use archive_files() there.

A topic's name is percent-encoded as Hive does; a very long one is cut and ends in a hash.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from trovemq_spark.archive.entry import FileEntry
from trovemq_spark.storage import Place

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
OUR_LINK: Final = re.compile(r"[0-9a-f]{32}[0-9-]*\.parquet")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]")
_SIZE_MAX: Final = 200
_NO_LINKS: Final = (errno.EEXIST, errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK)
"""Errors of existing names, and of file systems without links. There the manifest is enough."""


def partition_directory(entry: FileEntry) -> str:
    topic = NO_VALUE if not entry.topic else _escaped(entry.topic)
    return f"topic={topic}/date={entry.date or NO_VALUE}"


def link_name(entry: FileEntry) -> str:
    return f"{partition_directory(entry)}/{entry.file.rpartition('/')[2]}.parquet"


def _escaped(text: str) -> str:
    escaped = "".join(
        character if _PLAIN.fullmatch(character) else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in text
    )
    if len(escaped) <= _SIZE_MAX:
        return escaped
    return f"{escaped[: _SIZE_MAX - 33]}~{sha256(text.encode()).hexdigest()[:32]}"


def link_changes(place: Place, added: Iterable[FileEntry], removed: Iterable[FileEntry]) -> None:
    """After a commit: removes the names of removed files first, then makes the new ones. Raises OSError."""
    if place.local is None:
        return
    for entry in removed:
        (place.local / link_name(entry)).unlink(missing_ok=True)
    for entry in added:
        if not entry.is_damage:
            _link(place.local, entry)


def link_all(place: Place, entries: Iterable[FileEntry]) -> None:
    """Makes all names agree with the manifest, whatever a killed run has left. Raises OSError."""
    if place.local is None:
        return
    wanted = {link_name(entry): entry for entry in entries if not entry.is_damage}
    there = set(_links(place.local))
    for name in there - wanted.keys():
        (place.local / name).unlink(missing_ok=True)
    for name in sorted(wanted.keys() - there):
        _link(place.local, wanted[name])


def _links(root: Path) -> list[str]:
    """The names that this module has made; a user's own files are ignored."""
    found = root.glob("topic=*/date=*/*.parquet")
    return [str(path.relative_to(root)) for path in found if OUR_LINK.fullmatch(path.name)]


def _link(root: Path, entry: FileEntry) -> None:
    target = root / link_name(entry)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(root / entry.file, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
