"""Settings of a broker that runs: each one that is declared to need no restart has its effect at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support import fake_loop
from tests.support.services_here import BrokerServices, in_process, small_broker_settings
from trovemq_broker.daemon.broker_services import BrokerServices as Services
from trovemq_broker.daemon.live_settings import LIVE_SOURCE, LiveSettings
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_daemon.settings import settings_of
from trovemq_proto.errors import TroveError
from trovemq_store.files.memory import MemoryFileSystem

Read = Callable[[Services], object]


def of_policy(name: str) -> Read:
    return lambda parts: getattr(parts.tasks.retention._policy, name)


def of_flush(name: str) -> Read:
    return lambda parts: getattr(parts.core.group_commit._settings, name)


EFFECTS: dict[str, tuple[str, object, Read]] = {
    "reserved_time_ms": ("2h", 7_200_000, of_policy("reserved_ms")),
    "delete_when": ("05;06", (5, 6), lambda parts: tuple(sorted(parts.tasks.retention._policy.hours))),
    "clean_interval_ms": ("2s", 2.0, lambda parts: parts.tasks.retention._interval_s),
    "disk_used_percent_max": ("60", 60, of_policy("used_percent_max")),
    "disk_forcible_percent": ("70", 70, of_policy("forcible_percent")),
    "clean_forcibly_enable": ("on", True, of_policy("forcible_enable")),
    "disk_warning_percent": ("80", 80, of_policy("warning_percent")),
    "unacknowledged_max_ms": ("3h", 10_800_000, of_policy("unacknowledged_max_ms")),
    "delete_files_max": ("7", 7, of_policy("files_max")),
    "flush_interval_ms": ("70", 70, of_flush("flush_interval_ms")),
    "flush_least_pages": ("9", 9, of_flush("flush_least_pages")),
    "flush_thorough_interval_ms": ("4s", 4_000, of_flush("flush_thorough_interval_ms")),
    "many_queues_flush_interval_ms": (
        "2s",
        2_000,
        lambda parts: parts.tasks.projection_flushes.many_queues_interval_ms,
    ),
    "sync_flush_timeout_ms": ("3s", 3_000, of_flush("sync_flush_timeout_ms")),
    "unsynced_bytes_max": ("1MiB", 1 << 20, of_flush("unsynced_bytes_max")),
    "uncommitted_bytes_max": ("1MiB", 1 << 20, of_flush("uncommitted_bytes_max")),
    "append_wait_max_ms": ("2s", 2_000, of_flush("append_wait_max_ms")),
    "auto_create_topic_enable": (
        "yes",
        True,
        lambda parts: parts.core.appender._settings.auto_create_topic_enable,
    ),
    "auto_create_queue_count": ("3", 3, lambda parts: parts.core.appender._settings.auto_create_queue_count),
    "atomic_open_max": ("5", 5, lambda parts: parts.core.atomic._limits.atomic_open_max),
    "atomic_bytes_max": ("1MiB", 1 << 20, lambda parts: parts.core.atomic._limits.atomic_bytes_max),
    "atomic_timeout_max_ms": ("9s", 9_000, lambda parts: parts.core.atomic._limits.atomic_timeout_max_ms),
    "slow_request_ms": ("250", 250, lambda parts: parts.core.traffic.slow.limit_ms),
    "queries_max": ("11", 11, lambda parts: parts.queries.queries_max),
}
"""What is written, what it means, and where it is read."""

KNOWN = settings_of(BrokerSettings)


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.levels: list[str] = []
        self.settings = small_broker_settings(**settings)
        self.parts = BrokerServices(MemoryFileSystem(), self.settings).all
        self.live = self.live_settings(self.settings, {"name": "--name"})

    def live_settings(self, settings: BrokerSettings, sources: dict[str, str]) -> LiveSettings:
        parts = self.parts
        return LiveSettings(settings, sources, parts.core, parts.tasks, parts.queries, self.levels.append)

    def source(self, name: str) -> str:
        return self.live.shown([name])[0].source


@contextmanager
def refused(text: str) -> Iterator[None]:
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL") as error:
        yield
    assert text in error.value.message
    assert "\n" not in error.value.message


def here(test: Callable[[Bench], None], **settings: Any) -> None:
    async def scene() -> None:
        with in_process():
            test(Bench(**settings))

    fake_loop.run(scene())


def test_every_live_setting_is_tried_here() -> None:
    live = {name for name, known in KNOWN.items() if not known.restart}
    assert live == {*EFFECTS, "log_level"}


def test_each_live_setting_has_its_effect() -> None:
    def steps(bench: Bench) -> None:
        for name, (text, value, read) in EFFECTS.items():
            before = bench.live.shown([name])[0]
            assert read(bench.parts) != value, name
            shown = bench.live.set(name, text)
            assert read(bench.parts) == value, name
            assert (shown.source, shown.started_with) == (LIVE_SOURCE, before.value)
        for name, (_, value, read) in EFFECTS.items():
            assert read(bench.parts) == value, f"{name} is as it was set, after all others"

    here(steps)


def test_the_level_of_the_log() -> None:
    def steps(bench: Bench) -> None:
        bench.live.set("log_level", "DEBUG")
        bench.live.set_log_level("error")  # RocketMQ's ChangeLogLevel
        bench.live.set("queries_max", "5")
        assert bench.levels == ["debug", "error"], "another setting leaves it"
        assert bench.live.shown(["log_level"])[0].value == '"error"'

    here(steps)


def test_rocketmqs_names_and_forms() -> None:
    def steps(bench: Bench) -> None:
        assert bench.live.set("fileReservedTime", "72").value == str(72 * 3_600_000)
        assert [one.name for one in bench.live.shown(["flushDiskType"])] == ["flush_mode"]

    here(steps)


def test_all_others_need_a_restart_and_stay() -> None:
    def steps(bench: Bench) -> None:
        for name, known in KNOWN.items():
            if known.restart:
                with refused(f"{name} needs a restart"):
                    bench.live.set(name, "1")
        assert bench.live.now == bench.live._started_with

    here(steps)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("flush_interval", "1s", "did you mean flush_interval_ms?"),
        ("x" * 5_000, "1", "there is no setting 'xxx"),
        ("", "", "there is no setting ''"),
        ("flush_interval_ms", "0", "must be at least 1"),
        ("flush_interval_ms", "61s", "must be at most 60000"),
        ("flush_interval_ms", "soon\n" * 99, "must be a whole number"),
        ("log_level", "loud", "must be one of debug, info, warning, error"),
        ("delete_when", "25", "delete_when"),
        ("clean_forcibly_enable", "perhaps", "must be true or false"),
        ("fileReservedTime", "3 days", "whole number of hours"),
    ],
)
def test_what_is_refused_changes_nothing(name: str, text: str, said: str) -> None:
    def steps(bench: Bench) -> None:
        with refused(said):
            bench.live.set(name, text)
        assert bench.live.now == bench.live._started_with

    here(steps)


def test_sources_and_secrets() -> None:
    def steps(bench: Bench) -> None:
        assert bench.source("name") == "--name"
        assert bench.source("flush_mode") == "default"
        shown = {one.name: one for one in bench.live.shown([])}
        assert shown.keys() == KNOWN.keys()
        assert shown["init_authentication_user"].value == "", "a secret is not shown"
        assert shown["flush_mode"].value == '"sync"'

    here(steps, authentication_enable=True, init_authentication_user='{"username": "a", "password": "b"}')


def test_sizes_are_the_stores() -> None:
    def steps(bench: Bench) -> None:
        other = bench.live_settings(BrokerSettings(), {})
        (shown,) = other.shown(["commit_log_file_size"])
        assert (shown.value, shown.source) == ("98304", "the store")

    here(steps)
