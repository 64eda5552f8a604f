"""A damaged item count in the header of an index file: it hides nothing, and the scrub names the place."""

from __future__ import annotations

import functools

import pytest

from tests.support.answers import Answers
from tests.support.damage import TINY, Files, flipped, scrub, tiny_store, try_open
from trovemq_store.engine.message_store import MessageStore

COUNT_AT = 36


@functools.cache
def contents(clean: bool) -> dict[str, bytes]:
    return tiny_store(clean=clean)


@functools.cache
def answers(clean: bool) -> Answers:
    return Answers(Files.of(contents(clean)), TINY)


def index_files() -> list[str]:
    return sorted(path for path in contents(True) if path.startswith("index/"))


@pytest.mark.parametrize("byte", range(4))
@pytest.mark.parametrize("number", range(3))
def test_a_flipped_bit_of_an_index_files_count_hid_its_keys_unreported(number: int, byte: int) -> None:
    path = index_files()[number]
    for bit in range(8):
        damaged = flipped(contents(True), path, COUNT_AT + byte, bit)
        store = try_open(damaged, TINY)
        assert isinstance(store, MessageStore)
        assert answers(True).ask(store).same, bit
        assert any((found.file, found.offset) == (path, COUNT_AT) for found in scrub(store)), bit


@pytest.mark.parametrize("byte", range(4))
@pytest.mark.parametrize("number", range(3))
def test_a_flipped_bit_of_an_index_files_count_hides_nothing_after_a_kill(number: int, byte: int) -> None:
    for bit in range(8):
        store = try_open(flipped(contents(False), index_files()[number], COUNT_AT + byte, bit), TINY)
        assert isinstance(store, MessageStore)
        assert answers(False).ask(store).same, bit
