"""Shows the settings of a running broker, and changes those that are declared with `restart=False`.

A change applies at once and until the broker restarts. It is not stored: the start values come only from the
file, the environment and the command line, so that there is one place to look for them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from trovemq_broker.admin.shown_settings import ShownSetting
from trovemq_broker.daemon.background import StoreTasks
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.native.query_service import QueryService
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.logging import LogLevel, get_logger
from trovemq_daemon.setting_report import type_text
from trovemq_daemon.setting_values import toml_value
from trovemq_daemon.settings import DEFAULT_SOURCE, Setting, settings_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.check.store_view import SIZES

LIVE_SOURCE: Final = "set while it runs, until a restart"


class LiveSettings:
    """The settings of a running broker, and the parts to which a change is applied."""

    def __init__(
        self,
        settings: BrokerSettings,
        sources: Mapping[str, str],
        core: BrokerCore,
        tasks: StoreTasks,
        queries: QueryService,
        set_log_level: Callable[[LogLevel], None],
    ) -> None:
        self._known = settings_of(BrokerSettings)
        self._aliases = {alias: one for one in self._known.values() for alias in one.rocketmq}
        self._sources = dict(sources)
        sizes = {name: getattr(core.store.settings, name) for name in SIZES}
        for name in SIZES:
            if sizes[name] != getattr(settings, name):
                self._sources[name] = "the store"
        self._started_with = settings = replace(settings, **sizes)
        self._core = core
        self._tasks = tasks
        self._queries = queries
        self._set_log_level = set_log_level
        self._changed: set[str] = set()
        self.now = settings

    def shown(self, names: Sequence[str]) -> list[ShownSetting]:
        """The named settings, by our names or RocketMQ's; all settings if no name is given. Raises
        REQUEST_ILLEGAL for an unknown name."""
        known = [self._find(name) for name in names] if names else list(self._known.values())
        return [self._shown(one) for one in known]

    def set(self, name: str, text: str) -> ShownSetting:
        """Changes a setting at once. Raises REQUEST_ILLEGAL, and then nothing has changed."""
        known = self._find(name)
        if known.restart:
            raise _illegal(
                f"{known.name} needs a restart: write it into the broker's configuration", known.name
            )
        changed = self._with(known, name, text)
        before, self.now = self.now, changed
        self._changed.add(known.name)
        self._apply(known.name)
        get_logger().info(
            "setting.changed",
            name=known.name,
            value=toml_value(getattr(changed, known.name)),
            before=toml_value(getattr(before, known.name)),
        )
        return self._shown(known)

    def set_log_level(self, level: LogLevel) -> None:
        """Sets the log level, for RocketMQ's own call."""
        self.set("log_level", level)

    def _with(self, known: Setting, name: str, text: str) -> BrokerSettings:
        try:
            if name in known.rocketmq and known.convert is not None:
                text = known.convert(text, getattr(self.now, known.name))
            changed = replace(self.now, **{known.name: known.parse(text)})
        except (ValueError, SettingsError) as error:
            raise _illegal(f"{name}={text[:80]!r}: {error}", known.name) from None
        contradictions = [one for one in changed.problems() if one not in set(self.now.problems())]
        if contradictions:
            raise _illegal("; ".join(contradictions), known.name)
        return changed

    def _apply(self, name: str) -> None:
        """Applies every setting that can change, except the log level, which another call may have set."""
        settings, core = self.now, self._core
        if name == "log_level":
            self._set_log_level(settings.log_level)
        self._tasks.retention.apply(settings.retention_policy(), settings.clean_interval_ms)
        self._tasks.projection_flushes.many_queues_interval_ms = settings.many_queues_flush_interval_ms
        core.group_commit.apply(settings)
        core.appender.apply(settings)
        core.atomic.apply(settings)
        self._queries.queries_max = settings.queries_max
        core.traffic.slow.set_limit(settings.slow_request_ms, settings.waits_of_requests())

    def _find(self, name: str) -> Setting:
        found = self._known.get(name) or self._aliases.get(name)
        if found is not None:
            return found
        near = difflib.get_close_matches(name[:80], [*self._known, *self._aliases], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise _illegal(f"there is no setting {name[:80]!r}{hint}", name[:80])

    def _shown(self, known: Setting) -> ShownSetting:
        source = self._sources.get(known.name, DEFAULT_SOURCE)
        return ShownSetting(
            name=known.name,
            value=self._value(known, self.now),
            source=LIVE_SOURCE if known.name in self._changed else source,
            restart=known.restart,
            started_with=self._value(known, self._started_with),
            form=type_text(known),
            what=known.what,
        )

    @staticmethod
    def _value(known: Setting, settings: BrokerSettings) -> str:
        value = getattr(settings, known.name)
        return "" if known.secret and value != known.default else toml_value(value)


def _illegal(text: str, name: str) -> TroveError:
    return TroveError(errors.REQUEST_ILLEGAL, text, setting=name)
