"""Rows of bytes: sorted as bytes are, and made into bytes a part at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_store.index.trees import rows
from trovemq_store.index.trees.rows import Matrix, Rows, first_of_equal, order_of, take_rows

LISTS = st.integers(1, 40).flatmap(
    lambda size: st.lists(
        st.binary(min_size=size, max_size=size)
        | st.text("01", min_size=size, max_size=size).map(str.encode)
        | st.sampled_from([b"a" * size, b"a" * (size - 1) + b"b", b"\x00" * size, b"\xff" * size]),
        min_size=1,
        max_size=40,
    )
)


def matrix_of(found: list[bytes]) -> Matrix:
    return np.frombuffer(b"".join(found), np.uint8).reshape(len(found), len(found[0]))


@given(LISTS)
def test_rows_are_sorted_as_bytes_are_and_equal_ones_stay_in_their_order(found: list[bytes]) -> None:
    wanted = sorted(range(len(found)), key=lambda index: (found[index], index))
    matrix = matrix_of(found)
    order = order_of(matrix)
    assert order.tolist() == wanted
    taken = take_rows(matrix, order)
    assert list(Rows(taken)) == sorted(found)
    firsts = [n == 0 or found[wanted[n]] != found[wanted[n - 1]] for n in range(len(found))]
    assert first_of_equal(taken).tolist() == firsts


def test_bytes_that_one_number_has_no_space_for_are_compared_as_well() -> None:
    source = np.random.default_rng(7)
    heads = source.integers(0, 4, (500, 3)).astype(np.uint8)
    matrix = np.concatenate([np.repeat(heads, 20, axis=1), source.integers(0, 256, (500, 2))], axis=1)
    found = [row.tobytes() for row in matrix.astype(np.uint8)]
    assert order_of(matrix_of(found)).tolist() == sorted(range(500), key=lambda index: (found[index], index))


def test_no_rows_have_an_order() -> None:
    assert order_of(np.empty((0, 5), np.uint8)).tolist() == []


def test_rows_are_a_sequence_whose_bytes_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_AT_ONCE", 3)
    found = [b"%03d\x00" % number for number in range(10)]
    made = Rows(matrix_of(found))
    assert (len(made), made[0], made[-1]) == (10, found[0], found[-1])
    assert list(made) == list(made) == found
