"""The table of errors: unique, complete, in order, and the page that is made from it."""

from __future__ import annotations

import re
from pathlib import Path

import grpc

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ROOT = Path(__file__).resolve().parents[3]


def test_symbols_and_codes_are_unique() -> None:
    assert len({row.symbol for row in errors.ERRORS}) == len(errors.ERRORS)
    assert len({row.code for row in errors.ERRORS}) == len(errors.ERRORS)


def test_codes_rise_within_the_table() -> None:
    codes = [row.code for row in errors.ERRORS]
    assert codes == sorted(codes)


def test_each_row_is_complete() -> None:
    assert [row.symbol for row in errors.ERRORS if not is_complete(row)] == []


def is_complete(row: errors.ErrorSpec) -> bool:
    return (
        re.fullmatch(r"[A-Z][A-Z0-9_]+", row.symbol) is not None
        and 100 <= row.code < 600
        and row.grpc_status in grpc.StatusCode.__members__
        and row.grpc_status != "OK"
        and row.meaning.endswith(".")
        and row.what_to_do.endswith(".")
    )


def test_each_row_is_found_by_its_name_and_is_a_constant() -> None:
    for row in errors.ERRORS:
        assert getattr(errors, row.symbol) is row
        assert errors.by_symbol(row.symbol.lower()) is row
        assert errors.by_code(row.code) is row


def test_the_callers_own_errors_are_not_worth_a_retry() -> None:
    own = [row for row in errors.ERRORS if row.code < 200]
    assert own
    assert [row.symbol for row in own if row.retriable] == []
    assert {row.grpc_status for row in own} <= {"INVALID_ARGUMENT", "OUT_OF_RANGE"}


def test_the_page_has_each_row() -> None:
    page = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    sections = {section.partition("\n")[0]: section for section in page.split("\n### ")[1:]}
    lacking = {
        row.symbol: text
        for row in errors.ERRORS
        for text in (str(row.code), row.grpc_status, row.meaning, row.what_to_do)
        if text not in sections.get(row.symbol, "")
    }
    assert lacking == {}


def test_an_unknown_symbol_from_a_newer_peer_is_kept_in_the_text() -> None:
    error = errors.from_wire("SOMETHING_NEW", "what happened", {"limit": "5"})
    assert error.spec is errors.UNKNOWN_ERROR
    assert "SOMETHING_NEW" in str(error)
    assert error.fields == {"limit": "5"}


def test_the_attribute_in_doubt_of_the_how_to_did_not_exist() -> None:
    assert TroveError(errors.REQUEST_TIMEOUT, "late", in_doubt="true").in_doubt
    assert not TroveError(errors.REQUEST_TIMEOUT, "late").in_doubt
