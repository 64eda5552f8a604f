"""Files of keys and credentials: whole, readable by their owner alone, never replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from trovemq_daemon.private_files import read_private, write_private
from trovemq_proto.errors import TroveError


def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert read_private(path) is None
    write_private(path, b"secret")
    assert read_private(path) == b"secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["key"]


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_private(path, b"secret")
    with pytest.raises(TroveError, match="cannot be made"):
        write_private(path, b"other")
    assert read_private(path) == b"secret"


def test_what_a_crash_left_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "key.new").write_bytes(b"hal")
    write_private(tmp_path / "key", b"secret")
    assert read_private(tmp_path / "key") == b"secret"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TroveError, match="cannot be read"):
        read_private(tmp_path)
