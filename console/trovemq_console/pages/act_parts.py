"""An act: the page that asks, and its effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from trovemq import Client
from trovemq_console.pages.forms import Form
from trovemq_console.settings import ConsoleSettings


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect that an act would have.

    Attributes:
        question: To be confirmed.
        columns: Of `rows`, which give the details.
        command: The same as a command line.
        button: The button's text.
        form: The form to confirm, where it is not the one that was sent.
        destructive: Messages, offsets or rules are gone after it.
    """

    question: str
    command: str
    button: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    form: Form | None = None
    destructive: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect that it had; `failed` where a part of it did not work."""

    sentence: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Act:
    """An act: its preview, and doing it. `shows_secret`: its outcome has a secret."""

    title: str
    preview: Callable[[Client, Form, ConsoleSettings], Awaitable[Preview]]
    perform: Callable[[Client, Form], Awaitable[Outcome]]
    shows_secret: bool = False


def not_done_on(brokers: Iterable[str], later: Collection[str] = ()) -> str:
    """Sentences about the brokers on which a change is pending, and about those of them that make it `later`;
    empty if there are none."""
    again = in_words(broker for broker in brokers if broker not in later)
    sentence = f" Not done on {again}, which did not answer: do it again when it is back." if again else ""
    return f"{sentence} {in_words(later)} makes the change when it is back." if later else sentence


def in_words(names: Iterable[str], most: int = 8) -> str:
    """The names with commas between; of many, the first ones and how many more."""
    found = list(names)
    rest = f" and {len(found) - most:,} more" if len(found) > most else ""
    return ", ".join(found[:most]) + rest
