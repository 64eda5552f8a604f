"""Settings of retention, with RocketMQ's names and bounds.

A percentage out of bounds that is given under RocketMQ's name is set to the nearest bound, as RocketMQ does
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trovemq_broker.daemon.node_settings import DAY_MS, NodeSettings
from trovemq_daemon.settings import setting
from trovemq_store.log.retention import RetentionPolicy, parse_hours


def _hours(text: str, _current: object) -> str:
    """RocketMQ's fileReservedTime counts hours."""
    if not text.strip().isdecimal():
        raise ValueError("must be a whole number of hours")
    return f"{text.strip()}h"


def _between(least: int, most: int) -> Callable[[str, object], str]:
    def convert(text: str, _current: object) -> str:
        return str(min(max(int(text), least), most)) if text.strip().isdecimal() else text

    return convert


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings(NodeSettings):
    """The values of the settings. `problems()` reports contradictions."""

    reserved_time_ms: int = setting(
        3 * DAY_MS,
        "How long messages are kept; whole segments are removed, by the store time of their last record.",
        unit="ms",
        minimum=1,
        maximum=36_500 * DAY_MS,
        rocketmq="fileReservedTime",
        convert=_hours,
        restart=False,
    )
    delete_when: str = setting(
        "04",
        "Hours of the day (local time) at which old segments are removed, joined by `;`.",
        unit="hours",
        rocketmq="deleteWhen",
        restart=False,
    )
    clean_interval_ms: int = setting(
        10_000,
        "How often the broker looks for old segments, and checks how full the disk is.",
        unit="ms",
        minimum=10,
        maximum=DAY_MS,
        rocketmq="cleanResourceInterval",
        restart=False,
    )
    disk_used_percent_max: int = setting(
        75,
        "If more of the disk is used, old segments are removed at any hour.",
        unit="%",
        minimum=1,
        maximum=100,
        rocketmq="diskMaxUsedSpaceRatio",
        convert=_between(10, 95),
        restart=False,
    )
    disk_forcible_percent: int = setting(
        85,
        "If more of the disk is used, the oldest segments are removed however young they are, if "
        "clean_forcibly_enable is on; otherwise a warning is logged.",
        unit="%",
        minimum=1,
        maximum=100,
        rocketmq="diskSpaceCleanForciblyRatio",
        convert=_between(30, 85),
        restart=False,
    )
    clean_forcibly_enable: bool = setting(
        False,
        "Whether segments are removed before their time to free the disk, as RocketMQ does it. Off: new "
        "messages are refused from disk_warning_percent on, and retained messages are never removed "
        "early.",
        rocketmq="cleanFileForciblyEnable",
        restart=False,
    )
    disk_warning_percent: int = setting(
        90,
        "If more of the disk is used, new messages are refused as DISK_FULL.",
        unit="%",
        minimum=1,
        maximum=100,
        rocketmq="diskSpaceWarningLevelRatio",
        convert=_between(35, 90),
        restart=False,
    )
    unacknowledged_max_ms: int = setting(
        30 * DAY_MS,
        "How long topics with `retention = until_acknowledged` keep unacknowledged messages, if they "
        "have no `retention_age_max` of their own.",
        unit="ms",
        minimum=1_000,
        maximum=36_500 * DAY_MS,
        restart=False,
    )
    delete_files_max: int = setting(
        10,
        "Segments that are removed in one run.",
        unit="files",
        minimum=1,
        maximum=10_000,
        rocketmq="deleteFileBatchMax",
        restart=False,
    )

    def problems(self) -> Iterator[str]:
        """The contradictions, one sentence each."""
        yield from NodeSettings.problems(self)
        try:
            parse_hours(self.delete_when)
        except ValueError as error:
            yield f"delete_when {error}"

    def retention_policy(self) -> RetentionPolicy:
        """The engine's policy. Raises ValueError if problems() reports delete_when."""
        return RetentionPolicy(
            reserved_ms=self.reserved_time_ms,
            hours=parse_hours(self.delete_when),
            used_percent_max=self.disk_used_percent_max,
            forcible_percent=self.disk_forcible_percent,
            warning_percent=self.disk_warning_percent,
            forcible_enable=self.clean_forcibly_enable,
            files_max=self.delete_files_max,
            unacknowledged_max_ms=self.unacknowledged_max_ms,
        )
