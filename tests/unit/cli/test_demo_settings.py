"""The settings of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.demo.settings import parse_settings


def test_the_defaults_are_those_of_make_run() -> None:
    settings = parse_settings([], {})
    daemons = ("127.0.0.1:9876", "127.0.0.1:9877", "127.0.0.1:8081", "127.0.0.1:8080")
    assert settings.addresses == (*daemons, "127.0.0.1:8090")
    assert parse_settings(["--once"], {}).addresses == daemons
    assert settings.store == Path("data")
    assert "mappedFileSizeCommitLog=67108864" in settings.broker_arguments()
    assert "disk_warning_percent=99" in settings.broker_arguments(), "a few MB fit on nearly every disk"
    assert "console_url=http://127.0.0.1:8090" in settings.broker_arguments()


def test_an_option_wins_over_the_environment() -> None:
    environment = {"TROVEMQ_DEMO_STORE": "/elsewhere", "TROVEMQ_DEMO_INDEX_ITEM_COUNT": "7"}
    settings = parse_settings(["--store", "here", "--set", "flushDiskType=ASYNC_FLUSH"], environment)
    assert (settings.store, settings.index_item_count) == (Path("here"), 7)
    assert settings.broker_arguments()[-2:] == ["--set", "flushDiskType=ASYNC_FLUSH"]


@pytest.mark.parametrize("arguments", [["--index-item-count", "many"], ["--unknown"], ["stray"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_settings(arguments, {})
    assert stop.value.code == 2
