"""A value in a JSON body by its path, and paths that lead to none."""

from __future__ import annotations

import pytest

from trovemq_proto.errors import TroveError
from trovemq_spark.search.json_path import has_value, parse_path

BODY = b'{"a": {"b": [10, "x", {"a name": null}]}, "n": 1.5, "t": true}'


@pytest.mark.parametrize(
    ("path", "wanted", "expected"),
    [
        ("$.a.b[0]", "10", True),
        ("a.b[1]", "x", True),
        ("$.a.b[-3]", "10", True),
        ('$.a.b[2]["a name"]', "null", True),
        ("$.a.b[2]['a name']", None, True),
        ("$.n", "1.5", True),
        ("$.t", "true", True),
        ("$.a.b", '[10,"x",{"a name":null}]', True),
        ("$.a.b[3]", None, False),  # after the last one
        ("$.a.b[-4]", None, False),
        ("$.a.c", None, False),
        ("$.a.b.length", None, False),
        ("$.n[0]", None, False),
        ("$.a.b[0]", "1", False),
    ],
)
def test_a_path_beyond_the_end_of_a_list_failed_the_search(
    path: str, wanted: str | None, expected: bool
) -> None:
    assert has_value(BODY, parse_path(path), wanted) == expected


@pytest.mark.parametrize("body", [None, b"", b"\xff", b"{", b"[" * 100_000])
def test_a_body_that_is_no_json_has_no_value(body: bytes | None) -> None:
    assert not has_value(body, parse_path("$.a"), None)


@pytest.mark.parametrize("path", ["$.", "$.a[", "$.a[x]", "$.a b"])
def test_a_path_that_cannot_be_read_is_refused(path: str) -> None:
    with pytest.raises(TroveError, match="OPTION_ILLEGAL"):
        parse_path(path)
