"""Prints settings: for `--print-config`, and for the table of the reference page."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from trovemq_daemon.setting_values import toml_value
from trovemq_daemon.settings import Loaded, Setting, settings_of


def format_config(loaded: Loaded[Any]) -> str:
    """All settings with values and sources, one per line; the text is TOML that `--config` accepts."""
    known = settings_of(type(loaded.settings))
    lines = [
        (_line(one, getattr(loaded.settings, name)), loaded.sources[name]) for name, one in known.items()
    ]
    width = min(max(len(line) for line, _ in lines), 60)
    return "\n".join(
        f"{line:<{width}}  # {source}{_aliases(known[name])}"
        for name, (line, source) in zip(known, lines, strict=True)
    )


def _line(setting: Setting, value: object) -> str:
    """The line of one setting; a secret value is not shown."""
    if setting.secret and value != setting.default:
        return f"# {setting.name} is set, and secret"
    return f"{setting.name} = {toml_value(value)}"


def _aliases(setting: Setting) -> str:
    return f" (RocketMQ: {setting.rocketmq[0]})" if setting.rocketmq else ""


def format_reference(cls: type) -> str:
    """The settings as a Markdown table: name, RocketMQ's name, type and bounds, default, whether a change
    needs a restart, meaning."""
    rows = [
        "| setting | RocketMQ | type | default | change | effect |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for setting in settings_of(cls).values():
        names = ", ".join(f"`{alias}`" for alias in setting.rocketmq)
        default = f"`{toml_value(setting.default)}`"
        change = "restart" if setting.restart else "live"
        rows.append(
            f"| `{setting.name}` | {names} | {type_text(setting)} | {default} | {change} | {setting.what} |"
        )
    return "\n".join(rows) + "\n"


def type_text(setting: Setting) -> str:
    """The setting's form in words, as in `ms 1 to 60000`."""
    if get_origin(setting.type_) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(setting.type_))
    if setting.type_ is not int:
        return {bool: "true or false", str: "text"}.get(setting.type_, "list of texts")
    low, high = setting.minimum, setting.maximum
    bounds = (
        f" {low} to {high}"
        if low is not None and high is not None
        else f" from {low}"
        if low is not None
        else ""
    )
    return f"{setting.unit or 'number'}{bounds}"
