"""Settings of retention, with RocketMQ's names and bounds.

A percentage out of bounds that is given under RocketMQ's name is set to the nearest bound, as RocketMQ does
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

from trovemq_daemon.settings import DAY_MS, setting
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


@dataclass(frozen=True, kw_only=True)
class RetentionSettings:
    """The values of the settings."""

    reserved_time_ms: Annotated[
        int, setting("ms", 1, 36_500 * DAY_MS, rocketmq="fileReservedTime", convert=_hours, restart=False)
    ] = 3 * DAY_MS
    """How long messages are kept; whole segments are removed, by the store time of their last record."""
    delete_when: Annotated[str, setting("hours", rocketmq="deleteWhen", restart=False)] = "04"
    """Hours of the day (local time) at which old segments are removed, joined by `;`."""
    clean_interval_ms: Annotated[
        int, setting("ms", 10, DAY_MS, rocketmq="cleanResourceInterval", restart=False)
    ] = 10_000
    """How often the broker looks for old segments, and checks how full the disk is."""
    disk_used_percent_max: Annotated[
        int, setting("%", 1, 100, rocketmq="diskMaxUsedSpaceRatio", convert=_between(10, 95), restart=False)
    ] = 75
    """If more of the disk is used, old segments are removed at any hour."""
    disk_forcible_percent: Annotated[
        int,
        setting("%", 1, 100, rocketmq="diskSpaceCleanForciblyRatio", convert=_between(30, 85), restart=False),
    ] = 85
    """If more of the disk is used, the oldest segments are removed however young they are, if
    clean_forcibly_enable is on; otherwise a warning is logged."""
    clean_forcibly_enable: Annotated[bool, setting(rocketmq="cleanFileForciblyEnable", restart=False)] = False
    """Whether segments are removed before their time to free the disk, as RocketMQ does it. Off: new messages
    are refused from disk_warning_percent on, and retained messages are never removed early."""
    disk_warning_percent: Annotated[
        int,
        setting("%", 1, 100, rocketmq="diskSpaceWarningLevelRatio", convert=_between(35, 90), restart=False),
    ] = 90
    """If more of the disk is used, new messages are refused as DISK_FULL."""
    unacknowledged_max_ms: Annotated[int, setting("ms", 1_000, 36_500 * DAY_MS, restart=False)] = 30 * DAY_MS
    """How long topics with `retention = until_acknowledged` keep unacknowledged messages, if their options
    name no `retention_age_max`."""
    delete_files_max: Annotated[
        int, setting("files", 1, 10_000, rocketmq="deleteFileBatchMax", restart=False)
    ] = 10
    """Segments that are removed in one run."""

    def hour_problems(self) -> Iterator[str]:
        """A sentence if delete_when is wrong."""
        try:
            parse_hours(self.delete_when)
        except ValueError as error:
            yield f"delete_when {error}"

    def retention_policy(self) -> RetentionPolicy:
        """The engine's policy. Raises ValueError if hour_problems() has a sentence."""
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
