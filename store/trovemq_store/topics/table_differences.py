"""The changes that a record makes in a table, and those that another program has made in its file.

| name        | values of the entry by name                                                     |
|-------------|---------------------------------------------------------------------------------|
| ours        | the table as all records of the log give it                                     |
| base        | the same up to the content that the other program found: TableNote.base_end     |
| theirs      | the file                                                                        |

Its changes are the differences between base and theirs. They come after all of ours: the program wrote after
we had ended. An entry that it did not change keeps our value, which the file may lack after a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.topics.lax_json import JsonObject
from trovemq_store.topics.offsets import entry_key
from trovemq_store.topics.table_records import OFFSETS_KIND, TableRecord, deleted_group

Values = Mapping[str, object]


def changes_of_file(ours: Values, base: Values, theirs: Values) -> dict[str, object | None]:
    """The entries that are to be recorded, with their values in the file; None: deleted there."""
    names = [*theirs, *(name for name in base if name not in theirs)]
    changed = {name: theirs.get(name) for name in names if theirs.get(name) != base.get(name)}
    return {name: value for name, value in changed.items() if value != ours.get(name)}


def unknown_entries(recorded: Collection[str], theirs: Values) -> dict[str, object | None]:
    """The same without a note of the base: the log's records count, and the file adds entries of which the
    log has none, not even a deletion."""
    return {name: value for name, value in theirs.items() if name not in recorded}


def later_version(ours: JsonObject, theirs: JsonObject) -> JsonObject:
    """RocketMQ's dataVersion that is not below any of the two."""
    return theirs if _counter(theirs) >= _counter(ours) else ours


def _counter(version: JsonObject) -> int:
    counter = version.get("counter")
    return counter if isinstance(counter, int) else 0


def apply_record(
    kind: str,
    record: TableRecord,
    place: PhysicalOffset,
    values: JsonObject,
    places: dict[str, PhysicalOffset],
) -> bool:
    """Makes the record's change of the table of that kind. Whether there is one."""
    if kind == OFFSETS_KIND and (group := deleted_group(record)):
        gone = [name for name in values if entry_key(name)[1] == group]
        for name in gone:
            del values[name]
            places.pop(name, None)
        return bool(gone)
    if record.kind != kind:
        return False
    for name, value in record.entries:
        places.pop(name, None)
        if value is None:
            values.pop(name, None)
        else:
            values[name], places[name] = value, place
    return True
