"""Layers, names, values and errors of settings in general."""

from __future__ import annotations

import sys
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_daemon.errors import SettingsError
from trovemq_daemon.setting_report import format_config, format_reference
from trovemq_daemon.setting_sources import parse_properties
from trovemq_daemon.setting_values import parse_value, toml_value
from trovemq_daemon.settings import Loaded, load_settings, setting, settings_of


@dataclass(frozen=True, kw_only=True)
class Example:
    size: Annotated[int, setting("bytes", 16, 1 << 30, rocketmq="exampleSize")] = 1_024
    """A size."""
    wait_ms: Annotated[int, setting("ms", 0)] = 500
    """A time."""
    mode: Annotated[Literal["sync", "async"], setting(rocketmq=("flushType", "flush_type_4x"))] = "sync"
    """A choice."""
    enabled: Annotated[bool, setting()] = False
    """A switch."""
    names: Annotated[tuple[str, ...], setting()] = ()
    """A list."""
    text: Annotated[str, setting()] = ""
    """A text."""

    def problems(self) -> list[str]:
        return ["text must not be bad"] if self.text == "bad" else []


def load(
    *assignments: str,
    file: Path | None = None,
    environment: dict[str, str] | None = None,
    **flags: Any,
) -> Loaded[Example]:
    return load_settings(
        Example,
        environment_prefix="X",
        environment=environment or {},
        config=file,
        assignments=assignments,
        flags=flags,
        ignored_keys={"brokerRole"},
    )


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("layers", range(5))
def test_the_later_layer_wins_and_is_named(tmp_path: Path, layers: int) -> None:
    sources: list[tuple[str, Any]] = [
        ("file", write(tmp_path, "a.toml", "size = 101")),
        ("environment", {"X_SIZE": "102"}),
        ("assignments", ["size=103"]),
        ("size", "104"),
    ]
    arguments: dict[str, Any] = dict(sources[:layers])
    loaded = load(*arguments.pop("assignments", ()), **arguments)
    assert loaded.settings.size == (1_024, 101, 102, 103, 104)[layers]
    expected = ("default", f"file {tmp_path}/a.toml", "environment X_SIZE", "--set size", "--size")
    assert loaded.sources["size"] == expected[layers]


def test_both_names_work_in_every_source(tmp_path: Path) -> None:
    assert load("exampleSize=64").settings.size == 64
    assert load(environment={"X_EXAMPLESIZE": "64"}).settings.size == 64
    for text in ("exampleSize = 64\n", "size=64"):
        assert load(file=write(tmp_path, "b.toml", text)).settings.size == 64
        assert load(file=write(tmp_path, "broker.conf", text)).settings.size == 64
    assert load(environment={"X_CONFIG": str(tmp_path / "broker.conf")}).settings.size == 64


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(SettingsError) as wrong:
        load("siz=1", "size=1", "mode=maybe", "enabled=2", "wait_ms=soon", "wait_ms=-1")
    problems = "\n".join(wrong.value.problems)
    assert len(wrong.value.problems) == 6
    assert "there is no setting 'siz' (--set siz); did you mean size?" in problems
    assert "size=1: must be at least 16" in problems
    assert "must be one of sync, async" in problems
    assert "for example 500 or 5s" in problems


def test_one_setting_under_two_names_in_one_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="the same setting"):
        load(file=write(tmp_path, "broker.conf", "size=64\nexampleSize=65\n"))
    assert load("size=64", environment={"X_exampleSize": "65"}).settings.size == 64


def test_known_keys_of_others_warn_once_and_unknown_ones_are_errors(tmp_path: Path) -> None:
    loaded = load("brokerRole=SLAVE", file=write(tmp_path, "broker.conf", "brokerRole=ASYNC_MASTER\n"))
    assert len(loaded.warnings) == 1
    assert "brokerRole is a RocketMQ setting that is not implemented here" in loaded.warnings[0]
    with pytest.raises(SettingsError, match="did you mean brokerRole"):
        load("brokerRol=x")


def test_environment_that_kubernetes_made_is_left_alone() -> None:
    load(
        environment={"X_PORT": "tcp://1", "X_PORT_8081_TCP_ADDR": "1", "X_SERVICE_HOST": "1", "XX_SIZE": "1"}
    )
    with pytest.raises(SettingsError, match="X_SIZES"):
        load(environment={"X_SIZES": "1"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "size = ", "a.toml"),
        ("a.toml", "[size]\na = 1", "dict"),
        ("a.toml", "size = 1.5", "float"),
        ("a.toml", "size = true", "whole number"),
        ("a.toml", "names = [1]", "list"),
        ("a.conf", "size", "line 1"),
        ("a.conf", "size=ten", "whole number"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(file=write(tmp_path, name, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large.conf").write_bytes(b"#" * 1_048_577)
    for path in (tmp_path / "none.toml", tmp_path, tmp_path / "binary.toml", tmp_path / "large.conf"):
        with pytest.raises(SettingsError):
            load(file=path)


def test_properties_as_broker_conf_has_them() -> None:
    text = "# comment\n! too\n\n a = 1 \nb:2\nc=x=y\na=3\nempty=\r\n"
    assert parse_properties(text) == {"a": "3", "b": "2", "c": "x=y", "empty": ""}


def test_a_wrong_set_is_a_clear_error() -> None:
    for text in ("size", "=5", ""):
        with pytest.raises(SettingsError, match="NAME=VALUE"):
            load(text)
    with pytest.raises(SettingsError, match="text must not be bad"):
        load("text=bad")


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("65536", "bytes", 65_536), ("64KiB", "bytes", 65_536), ("64 kb", "bytes", 64_000),
        ("1G", "bytes", 1 << 30),
        ("1_000", "bytes", 1_000), ("5s", "ms", 5_000), ("2m", "ms", 120_000), ("7", "", 7),
    ],
)  # fmt: skip
def test_numbers_with_units(text: str, unit: str, value: int) -> None:
    assert parse_value(int, unit, text) == value


@pytest.mark.parametrize("text", ["", "1.5", "0x10", "1e3", "5KiB5", "१", "5s"])
def test_what_is_not_a_number_of_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_value(int, "bytes", text)


@given(
    size=st.integers(16, 1 << 30),
    mode=st.sampled_from(["sync", "async"]),
    enabled=st.booleans(),
    names=st.lists(st.text("abc.:1", min_size=1), max_size=3),
    text=st.text(st.characters(blacklist_categories=["Cc", "Cs"]))
    .map(str.strip)
    .filter(lambda t: t != "bad"),
)
def test_the_printed_config_is_a_config(
    tmp_path_factory: pytest.TempPathFactory, size: int, mode: str, enabled: bool, names: list[str], text: str
) -> None:
    first = load(
        f"size={size}", f"mode={mode}", f"enabled={enabled}", f"names={','.join(names)}", f"text={text}"
    )
    path = tmp_path_factory.getbasetemp() / "printed.toml"
    path.write_text(format_config(first))
    assert load(file=path).settings == first.settings


def test_values_are_shown_as_toml() -> None:
    assert [toml_value(value) for value in (True, 5, 'a"b', ("x", "y"))] == [
        "true",
        "5",
        '"a\\"b"',
        '["x", "y"]',
    ]


def test_the_reference_page_has_a_row_for_each_setting() -> None:
    rows = format_reference(Example).splitlines()
    assert len(rows) == 2 + 6
    assert rows[2] == "| `size` | `exampleSize` | bytes 16 to 1073741824 | `1024` | restart | A size. |"
    assert rows[4].startswith("| `mode` | `flushType`, `flush_type_4x` | `sync` or `async` |")


@dataclass(frozen=True, kw_only=True)
class Composed(Example):
    inner: int = 7
    wait_ms: Annotated[int, setting("ms", 1)] = 600


def test_a_composed_class_has_the_settings_of_its_parts() -> None:
    known = settings_of(Composed)
    assert [*known] == [*settings_of(Example)], "a field without setting() is none"
    assert (known["wait_ms"].minimum, known["wait_ms"].default) == (1, 600)
    assert (known["wait_ms"].what, known["mode"].what) == ("A time.", "A choice.")


def test_a_class_without_source_has_settings_without_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_dataclass("Made", [("size", Annotated[int, setting("bytes", 1)], 5)])
    assert settings_of(made)["size"].what == ""
    monkeypatch.setitem(sys.modules, "bare", ModuleType("bare"))
    made.__module__ = "bare"
    assert (settings_of(made)["size"].what, settings_of(made)["size"].minimum) == ("", 1)
