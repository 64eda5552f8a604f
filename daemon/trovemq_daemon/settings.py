"""Settings that document themselves, in layers: default < file < environment < --set < explicit flag.

A part declares its settings as fields of a frozen dataclass, with `setting()` in their annotation; the text
below a field describes it. A daemon's settings are a dataclass that inherits from those of its parts. A value
may be given under our name or RocketMQ's. All faults are reported together.

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        flush_interval_ms: Annotated[int, setting("ms", 1, rocketmq="flushIntervalCommitLog")] = 500
        '''How often the log is synced.'''
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast, get_args, get_type_hints

from trovemq_daemon.errors import SettingsError
from trovemq_daemon.setting_sources import (
    Assignment,
    read_assignments,
    read_config_file,
    read_environment,
    read_flags,
)
from trovemq_daemon.setting_values import parse_value, raw_text

__all__ = ["Assignment", "Loaded", "Setting", "SettingsError", "load_settings", "setting", "settings_of"]

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S")
Part = TypeVar("Part", bound="DataclassInstance")

Convert = Callable[[str, Any], str]
"""Converts a RocketMQ key's text, with our setting's present value, to the text of our setting."""

DEFAULT_SOURCE: Final = "default"
DAY_MS: Final = 86_400_000
GIB: Final = 1 << 30
JAVA_INT_MAX: Final = (1 << 31) - 1  # RocketMQ maps a file whose size is a Java int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The description of one setting. `unit` is bytes, ms or a noun; bounds are inclusive. `owner` is the
    dataclass that has the field `name`."""

    name: str = ""
    type_: Any = str
    default: object = None
    owner: type = object
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
    restart: bool = True
    rocketmq: tuple[str, ...] = ()
    convert: Convert | None = None
    secret: bool = False

    @property
    def what(self) -> str:
        """The text below the field, on one line; empty in an installation without sources."""
        for cls in self.owner.__mro__:
            if text := _texts_below_fields(cls.__module__).get((cls.__qualname__, self.name)):
                return text
        return ""

    def parse(self, text: str) -> Any:
        """Parses and checks a value. Raises ValueError."""
        value = parse_value(self.type_, self.unit, text)
        if isinstance(value, int) and not isinstance(value, bool):
            if self.minimum is not None and value < self.minimum:
                raise ValueError(f"must be at least {self.minimum}")
            if self.maximum is not None and value > self.maximum:
                raise ValueError(f"must be at most {self.maximum}")
        return value


def setting(
    unit: str = "",
    minimum: int | None = None,
    maximum: int | None = None,
    *,
    restart: bool = True,
    rocketmq: str | tuple[str, ...] = (),
    convert: Convert | None = None,
    secret: bool = False,
) -> Setting:
    """Makes a field a setting, in its annotation: its unit, bounds, RocketMQ's name(s).

    `convert` translates a value that was given under RocketMQ's name, if its form differs. A `secret` value
    is never shown, and not accepted on a command line, which every process on the machine can read.
    """
    return Setting(
        unit=unit, minimum=minimum, maximum=maximum, restart=restart, convert=convert, secret=secret,
        rocketmq=(rocketmq,) if isinstance(rocketmq, str) else rocketmq,
    )  # fmt: skip


def _settings_of(cls: type) -> Mapping[str, Setting]:
    types = get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        type_, *others = get_args(types[field.name]) or (None,)
        for known in others:
            if isinstance(known, Setting):
                found[field.name] = dataclasses.replace(
                    known, name=field.name, type_=type_, default=field.default, owner=cls
                )
    return found


settings_of: Callable[[type], Mapping[str, Setting]] = cache(_settings_of)
"""Every setting of such a dataclass by its name, in order. A field without `setting()` is none."""


@cache
def _texts_below_fields(module: str) -> Mapping[tuple[str, str], str]:
    """The text below each field in a module, on one line, by the names of class and field. Empty without the
    module's source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}
    found = {}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for pair in itertools.pairwise(cls.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[cls.name, name] = " ".join(text.split())
    return found


def part_of(settings: DataclassInstance, cls: type[Part], **others: object) -> Part:
    """The settings of one part: its fields have the values of the settings of the same name, or those in
    `others`, or else the part's own defaults."""
    shared = {field.name for field in dataclasses.fields(settings)} & {
        field.name for field in dataclasses.fields(cls)
    }
    values = {name: getattr(settings, name) for name in shared} | others
    return cast("Callable[..., Part]", cls)(**values)


class _Checked(Protocol):
    def problems(self) -> Iterable[str]: ...


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """The settings, the source of each (by our name), and warnings, of which each is to be logged.
    `secret_file`: the settings file, if it has a secret."""

    settings: S
    sources: dict[str, str]
    warnings: tuple[str, ...]
    secret_file: Path | None = None

    @property
    def written(self) -> frozenset[str]:
        """The names of settings that were given in a file, the environment or the command line."""
        return frozenset(name for name, source in self.sources.items() if source != DEFAULT_SOURCE)


class _Loader(Generic[S]):
    """Applies one layer after the other; collects problems."""

    def __init__(self, cls: type[S], ignored_keys: Collection[str]) -> None:
        self._cls = cls
        self._settings = settings_of(cls)
        self._aliases = {alias: s for s in self._settings.values() for alias in s.rocketmq}
        self._ignored_keys = ignored_keys
        self._by_folded_name = {
            **{name.casefold(): name for name in ignored_keys},
            **{name.casefold(): name for name in self._aliases},
            **{name.casefold(): name for name in self._settings},
        }
        self._values: dict[str, Any] = {name: s.default for name, s in self._settings.items()}
        self._sources = dict.fromkeys(self._settings, DEFAULT_SOURCE)
        self._problems: list[str] = []
        self._warnings: dict[str, str] = {}

    def apply(self, layer: Iterable[Assignment], *, fold_case: bool = False) -> None:
        written: dict[str, str] = {}  # our name -> the name that this layer used
        for given in layer:
            name = self._by_folded_name.get(given.name.casefold(), given.name) if fold_case else given.name
            known = self._settings.get(name) or self._aliases.get(name)
            if known is None:
                self._unknown(name, given)
            elif written.setdefault(known.name, name) != name:
                first = written[known.name]
                self._problems.append(
                    f"{first} and {name} are the same setting; give one of them ({given.source})"
                )
            else:
                self._assign(known, name, given)

    def _assign(self, known: Setting, name: str, given: Assignment) -> None:
        if known.secret and given.source.startswith("--"):
            self._problems.append(
                f"{name} is secret: give it in a file or in the environment, not on a command line"
            )
            return
        try:
            text = raw_text(given.raw)
            if name in known.rocketmq and known.convert is not None:
                text = known.convert(text, self._values[known.name])
            self._values[known.name] = known.parse(text)
        except (ValueError, SettingsError) as error:
            shown = "…" if known.secret else f"{given.raw!s:.80}"
            self._problems.append(f"{name}={shown}: {error} ({given.source})")
            return
        source = given.source
        shows_name = name == known.name or name in source
        self._sources[known.name] = source if shows_name else f"{source} ({name})"

    def _unknown(self, name: str, given: Assignment) -> None:
        if name in self._ignored_keys:
            self._warnings[name] = (
                f"{name} is a RocketMQ setting that is not implemented here; it is ignored ({given.source})"
            )
            return
        names = [*self._settings, *self._aliases, *self._ignored_keys]
        folded = {candidate.casefold(): candidate for candidate in names}
        near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
        hint = f"; did you mean {folded[near[0]]}?" if near else ""
        self._problems.append(f"there is no setting {name[:80]!r} ({given.source}){hint}")

    def result(self) -> Loaded[S]:
        if not self._problems:
            settings = self._cls(**self._values)
            if hasattr(settings, "problems"):
                self._problems.extend(cast("_Checked", settings).problems())
            if not self._problems:
                return Loaded(settings, self._sources, tuple(self._warnings.values()))
        raise SettingsError(self._problems)


def load_settings(
    cls: type[S],
    *,
    environment_prefix: str,
    environment: Mapping[str, str],
    config: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, object | None] | None = None,
    ignored_keys: Collection[str] = (),
) -> Loaded[S]:
    """Reads all layers. `flags`: explicit options by our name, None if not given; `assignments`: --set.

    `ignored_keys` are names that cause a warning instead of an error. The sentences of the class's
    `problems()`, if it has them, are errors, too. Raises SettingsError with all faults.
    """
    loader = _Loader(cls, ignored_keys)
    named = environment.get(f"{environment_prefix}_CONFIG")
    path = config or (Path(named) if named else None)
    if path is not None:
        loader.apply(read_config_file(path))
    loader.apply(read_environment(environment, environment_prefix), fold_case=True)
    loader.apply(read_assignments(assignments))
    loader.apply(read_flags(flags or {}))
    loaded = loader.result()
    in_file = any(
        one.secret and loaded.sources[name].startswith("file ") for name, one in settings_of(cls).items()
    )
    return dataclasses.replace(loaded, secret_file=path) if in_file else loaded
