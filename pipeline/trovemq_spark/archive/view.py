"""The committed files also under names that other programs expect: `topic=T/date=YYYY-MM-DD/NAME.parquet`.

On local paths these are links to the files of the manifest, which take no space. A glob such as
`ARCHIVE/topic=*/date=*/*.parquet` or `ARCHIVE/topic=*/**/*.parquet`, and a program that finds Hive's
partitions, see every row at most once and no unfinished file, at every moment. Rows that they have once seen
they do not miss later, also while `compact` replaces their files and after it was killed there: a folder
changes in one step (archive/swap.py, which says where it cannot). They may miss rows of a commit whose links
are not made yet; if a run was killed there, the next run makes them. Rows of damage have no link. There are
no links on object stores: use archive_files() there.

A topic's name is percent-encoded as Hive does; a very long one is cut and ends in a hash.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from trovemq_spark.archive.entry import FileEntry
from trovemq_spark.archive.swap import OUR_LINK, change_links, clear_all
from trovemq_spark.storage import StoragePath

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]")
_SIZE_MAX: Final = 200


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


def link_changes(place: StoragePath, added: Iterable[FileEntry], removed: Iterable[FileEntry]) -> None:
    """After a commit: makes the names of added files, and removes those of removed ones. Raises OSError."""
    if place.local is not None:
        _change(place.local, _wanted(added), _wanted(removed))


def link_all(place: StoragePath, entries: Iterable[FileEntry]) -> None:
    """Makes all names agree with the manifest, whatever a killed run has left. Raises OSError."""
    if place.local is None:
        return
    clear_all(place.local)
    wanted = _wanted(entries)
    there = set(_links(place.local))
    missing = {name: entry for name, entry in wanted.items() if name not in there}
    _change(place.local, missing, there - wanted.keys())


def _wanted(entries: Iterable[FileEntry]) -> dict[str, FileEntry]:
    return {link_name(entry): entry for entry in entries if not entry.is_damage}


def _links(root: Path) -> list[str]:
    """The names that this module has made; a user's own files are ignored."""
    found = root.glob("topic=*/date=*/*.parquet")
    return [str(path.relative_to(root)) for path in found if OUR_LINK.fullmatch(path.name)]


def _change(root: Path, added: Mapping[str, FileEntry], removed: Iterable[str]) -> None:
    """Makes and removes these names, folder by folder."""
    come: defaultdict[str, dict[str, Path]] = defaultdict(dict)
    go: defaultdict[str, set[str]] = defaultdict(set)
    for link, entry in added.items():
        folder, _, name = link.rpartition("/")
        come[folder][name] = root / entry.file
    for link in removed:
        folder, _, name = link.rpartition("/")
        go[folder].add(name)
    for folder in sorted(come.keys() | go.keys()):
        change_links(root, folder, come[folder], go[folder])
