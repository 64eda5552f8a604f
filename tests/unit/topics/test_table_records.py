"""The codec of the tables' records, and the differences that another program's file has."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.table_differences import changes_of_file, later_version, unknown_entries
from trovemq_store.topics.table_records import TableRecord, decode_table_record, encode_table_record

NAMES = st.sampled_from(("a", "b", "c", "d"))
TABLES = st.dictionaries(NAMES, st.integers(0, 3).map(lambda number: {"perm": number}))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters()),
    lambda one: st.dictionaries(st.text(), one),
)


@given(
    st.text(st.characters()), st.none() | st.dictionaries(st.text(), JSON), st.dictionaries(st.text(), JSON)
)
def test_a_record_is_read_as_it_was_written(
    name: str, value: dict[str, object] | None, version: dict[str, object]
) -> None:
    body = encode_table_record("topic", name, value, version)
    assert body.isascii()
    assert decode_table_record(body) == TableRecord("topic", name, value, version)


def test_the_form_of_a_record() -> None:
    body = encode_table_record("group", "g", None, {"counter": 3})
    assert body == b'{"format":1,"kind":"group","name":"g","value":null,"dataVersion":{"counter":3}}'


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(TroveError) as caught:
        decode_table_record(b'{"format":2}')
    assert caught.value.spec is errors.STORE_NEWER


@pytest.mark.parametrize(
    "changes",
    [{"format": "1"}, {"format": 0}, {"kind": 1}, {"name": None}, {"value": []}, {"dataVersion": None}],
)
def test_a_body_of_another_form_is_an_error(changes: dict[str, object]) -> None:
    document = json.loads(encode_table_record("topic", "T", {}, {}))
    with pytest.raises(ValueError):
        decode_table_record(json.dumps({**document, **changes}).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"{}", b"1"])
def test_bytes_that_are_no_object_are_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode_table_record(body)


# --- differences --------------------------------------------------------------------------------------
def merged(ours: dict[str, object], changes: dict[str, object | None]) -> dict[str, object]:
    return {name: value for name, value in {**ours, **changes}.items() if value is not None}


@given(TABLES, TABLES)
def test_a_file_that_followed_our_last_change_counts_whole(
    ours: dict[str, object], theirs: dict[str, object]
) -> None:
    assert merged(ours, changes_of_file(ours, ours, theirs)) == theirs


@given(TABLES, TABLES)
def test_a_file_without_a_change_keeps_our_later_records(
    ours: dict[str, object], base: dict[str, object]
) -> None:
    assert changes_of_file(ours, base, base) == {}


@given(TABLES, TABLES, TABLES)
def test_each_entry_has_the_last_change(
    ours: dict[str, object], base: dict[str, object], theirs: dict[str, object]
) -> None:
    result = merged(ours, changes_of_file(ours, base, theirs))
    for name in {*ours, *base, *theirs}:
        changed = theirs.get(name) != base.get(name)
        assert result.get(name) == (theirs if changed else ours).get(name)


@given(TABLES, TABLES, TABLES)
def test_an_interrupted_import_is_repeated_without_effect(
    ours: dict[str, object], base: dict[str, object], theirs: dict[str, object]
) -> None:
    result = merged(ours, changes_of_file(ours, base, theirs))
    assert changes_of_file(result, base, theirs) == {}


def test_without_a_note_the_file_adds_names_alone() -> None:
    assert unknown_entries({"a", "deleted"}, {"a": {"perm": 1}, "deleted": {}, "b": {}}) == {"b": {}}


def test_the_later_version_wins() -> None:
    assert later_version({"counter": 3}, {"counter": 2}) == {"counter": 3}
    assert later_version({"counter": 3}, {"counter": 3, "timestamp": 1}) == {"counter": 3, "timestamp": 1}
    assert later_version({}, {"counter": 1}) == {"counter": 1}
