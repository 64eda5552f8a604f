"""A store in use, and a backup of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.backups import back_up, fill
from tests.support.engine import NOW_MS, flush, open_store
from trovemq_store.backup.manifest import STORE_NAME
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[MessageStore]:
    opened = open_store(RealFileSystem(root), topics=("orders", "gone"))
    fill(opened, 100)
    flush(opened)
    opened.flush_projections()
    yield opened
    opened.close(NOW_MS + 1_000)


@pytest.fixture
def backup(store: MessageStore, root: Path, tmp_path: Path) -> Path:
    back_up(store, root, tmp_path / "backup", link=False)
    return tmp_path / "backup" / STORE_NAME
