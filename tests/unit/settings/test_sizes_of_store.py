"""Sizes that are not set are those of the store; given sizes are checked against it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.support.engine import NOW_MS, SMALL, open_store, send
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_daemon.settings import load_settings
from trovemq_proto.errors import TroveError
from trovemq_store.check.layouts import HEADER_SIZE
from trovemq_store.check.store_view import SIZES, with_sizes_of_store
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import StorageError, UnreadableError
from trovemq_store.files.read_only import ReadOnlyFile
from trovemq_store.files.real import RealFileSystem
from trovemq_store.log.state import PATH
from trovemq_store.settings import StoreSettings

DEFAULTS: Final = StoreSettings()


def _sizes(settings: StoreSettings) -> dict[str, int]:
    return {name: getattr(settings, name) for name in SIZES}


def _small_store(root: Path) -> None:
    store = open_store(RealFileSystem(root), SMALL)
    send(store, b"a body")
    store.close(NOW_MS)


def test_a_missing_or_empty_store_takes_the_settings_as_they_are(tmp_path: Path) -> None:
    assert with_sizes_of_store(tmp_path / "none", SMALL, ()) == SMALL
    assert with_sizes_of_store(tmp_path, SMALL, SIZES) == SMALL


@pytest.mark.parametrize("lost", [(), (PATH,)])
def test_a_store_of_other_sizes_opens_without_settings(tmp_path: Path, lost: tuple[str, ...]) -> None:
    _small_store(tmp_path)
    for path in lost:
        (tmp_path / path).unlink()
    wanted = replace(DEFAULTS, cluster="kept")
    settings = with_sizes_of_store(tmp_path, wanted, frozenset({"cluster"}))
    expected = _sizes(SMALL)
    if lost:  # no file names its slots; and without messages with keys there is none
        expected |= {name: size for name, size in _sizes(DEFAULTS).items() if name.startswith("index")}
    assert _sizes(settings) == expected
    assert settings.cluster == "kept"
    if not lost:
        MessageStore.open(RealFileSystem(tmp_path), settings, NOW_MS).close(NOW_MS)


def test_the_slots_were_read_from_unreadable_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(RealFileSystem(tmp_path), SMALL)
    send(store, b"a body", keys="k")
    store.close(NOW_MS)
    (tmp_path / PATH).unlink()
    assert _sizes(with_sizes_of_store(tmp_path, DEFAULTS, ())) == _sizes(SMALL)
    bad = ("", 0)

    def check(file: ReadOnlyFile, begin: int, end: int) -> None:
        if file.path.startswith(bad[0]) and begin <= bad[1] < end:
            raise UnreadableError("read", file.path, errno.EIO)

    monkeypatch.setattr(ReadOnlyFile, "check_readable", check)
    for position in (0, HEADER_SIZE + 20):
        bad = ("index/", position)
        with pytest.raises(StorageError):
            with_sizes_of_store(tmp_path, DEFAULTS, ())
    bad = ("commitlog/", 0)
    items, slots = (getattr(with_sizes_of_store(tmp_path, DEFAULTS, ()), name) for name in SIZES[:1:-1])
    assert items == 4 * slots, "RocketMQ's ratio"


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_somebody_wrote_and_the_store_contradicts_is_refused(tmp_path: Path, name: str) -> None:
    _small_store(tmp_path)
    settings = with_sizes_of_store(tmp_path, DEFAULTS, {name})
    assert _sizes(settings) == _sizes(SMALL) | {name: getattr(DEFAULTS, name)}
    with pytest.raises(TroveError) as refused:
        MessageStore.open(RealFileSystem(tmp_path), settings, NOW_MS)
    assert refused.value.symbol == "STORE_SETTINGS_MISMATCH"


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [_cut_short, lambda path: path.write_bytes(b"")])
def test_a_log_file_of_a_wrong_size_is_not_taken_for_the_size_of_all(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    for start in (0, 8_192, 16_384):
        (log / f"{start:020d}").write_bytes(bytes(8_192))
    damage(log / f"{16_384:020d}")
    assert with_sizes_of_store(tmp_path, DEFAULTS, ()).commit_log_file_size == 8_192
    for start in (8_192, 16_384):
        (log / f"{start:020d}").unlink()
    damage(log / f"{0:020d}")
    assert with_sizes_of_store(tmp_path, DEFAULTS, ()) == DEFAULTS


def test_written_settings_are_those_of_any_source(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("mappedFileSizeCommitLog=8192\n")
    loaded = load_settings(
        BrokerSettings,
        environment_prefix="TEST",
        environment={"TEST_INDEX_SLOT_COUNT": "100"},
        config=config,
        assignments=["consume_queue_file_size=2000"],
        flags={"store": "elsewhere", "listen": None},
    )
    assert loaded.written == {
        "commit_log_file_size", "index_slot_count", "consume_queue_file_size", "store"
    }  # fmt: skip
