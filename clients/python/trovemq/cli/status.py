"""errors: the meaning of an error."""

from __future__ import annotations

import difflib
from typing import Annotated, Final

import typer

from trovemq.cli.columns import Column, Columns
from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "errors")(explain_errors)


def complete_error(incomplete: str) -> list[str]:
    """Symbols of errors that begin so."""
    return [row.symbol for row in errors.ERRORS if row.symbol.startswith(incomplete)]


async def explain_errors(
    session: Session,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A symbol or a code; else all.",
            show_default=False,
            autocompletion=complete_error,
        ),
    ] = None,
) -> None:
    """Explain an error. Its meaning, whether to try again, and the remedy."""
    if name is None:
        session.show_list(errors.ERRORS, _ERRORS)
        return
    row = find_error(name)
    fields = _ERRORS.fields(row)
    session.output.item(fields)
    if not session.output.objects:
        from trovemq.cli.render import card

        shown = {"code": row.number, "retriable": "yes" if row.retriable else "no"}
        session.output.show(card({**fields, **shown}))


def find_error(name: str) -> ErrorSpec:
    """The row of a symbol (any case) or a code (`E200`, `200`). Raises TroveError REQUEST_ILLEGAL with near
    symbols."""
    try:
        number = name.upper().removeprefix("E")
        is_number = number.isascii() and number.isdigit()
        return errors.by_code(int(number)) if is_number else errors.by_symbol(name)
    except KeyError:
        symbols = [row.symbol for row in errors.ERRORS]
        near = ", ".join(difflib.get_close_matches(name.upper(), symbols))
        hint = f"near: {near}" if near else "`trovemq errors` lists all"
        raise TroveError(errors.REQUEST_ILLEGAL, f"no error is called {name}; {hint}") from None


_ERRORS: Final[Columns[ErrorSpec]] = Columns(
    Column("symbol", "symbol", lambda row: row.symbol),
    Column("code", "code", lambda row: row.code, lambda row: row.number),
    Column("grpcStatus", None, lambda row: row.grpc_status),
    Column("retriable", "retriable", lambda row: row.retriable, lambda row: "yes" if row.retriable else "no"),
    Column("meaning", "meaning", lambda row: row.meaning),
    Column("whatToDo", None, lambda row: row.what_to_do),
)
