"""Reading fastjson's JSON, and writing standard JSON."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_store.topics import lax_json

SCALARS = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.text() | st.integers().map(str), VALUES, max_size=5)


def write_lax(value: object) -> str:
    """As fastjson does: keys that are integers stand without quotes."""
    if isinstance(value, dict):
        members = (f"{write_key(key)} : {write_lax(member)}" for key, member in value.items())
        return "{" + ",\n\t".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write_lax, value)) + "]"
    return json.dumps(value)


def write_key(key: str) -> str:
    return key if re.fullmatch("-?[0-9]+", key, re.ASCII) else json.dumps(key)


@given(DOCUMENTS)
def test_bare_integer_keys_read_as_text(document: dict[str, object]) -> None:
    assert lax_json.parse(write_lax(document).encode()) == document


@given(DOCUMENTS)
def test_what_we_write_is_standard_json(document: dict[str, object]) -> None:
    rendered = lax_json.render(document)
    assert lax_json.parse(rendered) == document
    assert json.loads(rendered) == document


@given(st.binary(max_size=200) | st.text('{}[]:,"\\ 01ab', max_size=60).map(str.encode))
def test_anything_else_is_a_value_error(data: bytes) -> None:
    try:
        document = lax_json.parse(data)
    except ValueError:
        return
    assert isinstance(document, dict)


def test_text_that_looks_like_a_bare_key_stays() -> None:
    assert lax_json.parse(b'{0:"{1:2,3:4}","a\\"{5:":6}') == {"0": "{1:2,3:4}", 'a"{5:': 6}


@pytest.mark.parametrize(
    "text", ["[]", "1", "", "{", '{"a":NaN}', '{"a":Infinity}', "{a b:1}", "[" * 100_000]
)
def test_not_an_object(text: str) -> None:
    with pytest.raises(ValueError):
        lax_json.parse(text.encode())


def test_a_huge_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lax_json, "JSON_SIZE_MAX", 10)
    with pytest.raises(ValueError, match="more than 10"):
        lax_json.parse(b'{"abcdefgh":1}')


def test_rendered_as_rocketmq_indents() -> None:
    assert lax_json.render({"a": {"b": 1}, "ü": []}) == '{\n\t"a":{\n\t\t"b":1\n\t},\n\t"ü":[]\n}'.encode()
