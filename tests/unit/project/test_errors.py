"""The table of errors: unique, complete, in order, and the page that is made from it."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from trovemq_proto import errors

ROOT = Path(__file__).resolve().parents[3]
rows = pytest.mark.parametrize("row", errors.ERRORS, ids=lambda row: row.symbol)


def test_symbols_and_codes_are_unique() -> None:
    assert len({row.symbol for row in errors.ERRORS}) == len(errors.ERRORS)
    assert len({row.code for row in errors.ERRORS}) == len(errors.ERRORS)


def test_codes_rise_within_the_table() -> None:
    codes = [row.code for row in errors.ERRORS]
    assert codes == sorted(codes)


@rows
def test_a_row_is_complete(row: errors.ErrorSpec) -> None:
    assert re.fullmatch(r"[A-Z][A-Z0-9_]+", row.symbol)
    assert 100 <= row.code < 600
    assert row.grpc_status in grpc.StatusCode.__members__
    assert row.grpc_status != "OK"
    assert row.meaning.endswith(".")
    assert row.what_to_do.endswith(".")


@rows
def test_a_row_is_found_by_its_name_and_is_a_constant(row: errors.ErrorSpec) -> None:
    assert getattr(errors, row.symbol) is row
    assert errors.by_symbol(row.symbol.lower()) is row
    assert errors.by_code(row.code) is row


@rows
def test_the_callers_own_errors_are_not_worth_a_retry(row: errors.ErrorSpec) -> None:
    if row.code < 200:
        assert not row.retriable
        assert row.grpc_status in {"INVALID_ARGUMENT", "OUT_OF_RANGE"}


@rows
def test_the_page_has_the_row(row: errors.ErrorSpec) -> None:
    page = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    section = page.split(f"### {row.symbol}\n", 1)[1].split("\n### ", 1)[0]
    assert str(row.code) in section
    assert row.grpc_status in section
    assert row.meaning in section
    assert row.what_to_do in section


def test_an_unknown_symbol_from_a_newer_peer_is_kept_in_the_text() -> None:
    error = errors.from_wire("SOMETHING_NEW", "what happened", {"limit": "5"})
    assert error.spec is errors.UNKNOWN_ERROR
    assert "SOMETHING_NEW" in str(error)
    assert error.fields == {"limit": "5"}
