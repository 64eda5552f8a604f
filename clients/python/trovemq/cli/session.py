"""The common part of all verbs: global options, the connection, time limits, and exit codes of errors."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec, TypeVar

import typer

from trovemq.cli.away import Away
from trovemq.cli.columns import Columns, Shown
from trovemq.cli.connecting import NAMES, Connecting, verb_parameters
from trovemq.cli.lazy import WrongUsage
from trovemq.cli.message_format import MessageFormat, parse_message_format
from trovemq.cli.options import (
    SERVER_DEFAULT,
    TIMEOUT_S_DEFAULT,
    ContextOption,
    Format,
    JsonOption,
    OutputOption,
    ServerOption,
    SharedOptions,
    TimeoutOption,
)
from trovemq.cli.output import Output
from trovemq.cli.progress import Progress
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import Client, ClientOptions
    from trovemq.cli.times import Moment

UNSEEN: Final = (
    "the cluster has {0}, to which {1} does not lead: give a nameserver's address, or that of each broker"
    " (--server HOST:PORT,HOST:PORT)"
)
ABSENT: Final = (
    errors.BROKER_NOT_FOUND,
    errors.GROUP_NOT_FOUND,
    errors.MESSAGE_NOT_FOUND,
    errors.TOPIC_NOT_FOUND,
)
"""Errors of something that a broker may have which the given address does not lead to."""
SILENT_SHOWN_MAX: Final = 3
"""How many brokers a message names."""
CALL_SHARE: Final = 0.8
"""Of --timeout, for a call to one broker."""

MESSAGE_FORMAT: Final = "message_format"
MessageFormatOption = Annotated[
    MessageFormat | None,
    typer.Option(
        "-f",
        "--message-format",
        parser=parse_message_format,
        metavar="FORMAT",
        help="Messages in kcat's form: %t topic, %p queue, %o offset, %k keys, %h properties, %s body, \\n.",
        show_default=False,
    ),
]
"""Of verbs whose answer has messages with bodies."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(slots=True)
class Session:
    """One run of one verb; `exit_code` is for an answer that itself reports a fault."""

    options: SharedOptions
    timeout_s: float
    output: Output
    exit_code: int = 0
    server: str = ""
    """Without secrets; set when there is a connection."""
    connected: Client | None = None
    progress: Progress = field(init=False)
    away: Away = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(self.output)
        self.away = Away(self.output)

    async def run(self, verb: Coroutine[Any, Any, None]) -> None:
        """Awaits the verb; shows a bar if it takes long and standard error is a terminal."""
        async with self.progress.shown():
            await verb

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A connection to the server. Raises TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, TLS_FAILED."""
        import trovemq
        from trovemq._net.servers import without_secret
        from trovemq.cli.context_file import chosen_server

        server = chosen_server(self.options.server, self.options.context, SERVER_DEFAULT)
        self.server = without_secret(server)
        given = self.options.connecting.client_options() or trovemq.ClientOptions()
        client = await self.call(trovemq.connect(server, options=self._within_timeout(given)))
        self.connected = client
        try:
            yield client
        finally:
            await client.close()

    def note_unseen(self, broker: str | None = None) -> None:
        """Says so if the given address leads to some of the cluster's brokers only. `broker`: the only one
        that was asked."""
        if broker is None and (text := self._unseen()):
            self.output.note(complete=False)
            self.output.remark(text)

    def explained(self, error: TroveError) -> TroveError:
        """The error, with the same text if its subject may be on such a broker."""
        text = self._unseen() if error.spec in ABSENT else ""
        return TroveError(error.spec, f"{error.message}; {text}", **error.fields) if text else error

    def _unseen(self) -> str:
        count = 0 if self.connected is None else self.connected._pool.unasked()
        if not count:
            return ""
        self.output.note(unseen=count)
        return UNSEEN.format(f"{count} more broker{'s' * (count > 1)}", self.server)

    async def times(
        self, client: Client, topic: str, *moments: Moment, broker: str | None = None
    ) -> list[int]:
        """Epoch milliseconds of the moments: a relative one counts by the clock of the topic's broker."""
        now_ms = 0
        if any(moment.relative for moment in moments):
            now_ms = await self.call(client.broker_time(topic, broker=broker))
        return [moment.at(now_ms) for moment in moments]

    async def note_lost(self, client: Client, topic: str, broker: str | None) -> None:
        """Says which brokers had the topic and are lost: without `broker`, the only other one has answered
        for a queue of that number."""
        if broker is None:
            lost = await self.call(client._pool.lost_brokers_of(topic))
            self.away.add("missing", [one.name for one in lost])

    def show_list(self, found: Iterable[Shown], columns: Columns[Shown]) -> None:
        """The answer of a listing: one object per item, or for people one table."""
        entries = list(found)
        for one in entries:
            self.output.item(columns.fields(one))
        self.show_table(columns, map(columns.row, entries))

    def show_table(self, columns: Columns[Any], rows: Iterable[Sequence[object]]) -> None:
        """A table with these columns, for people only."""
        if self.output.objects:
            return
        from trovemq.cli.render import table

        self.output.show(table(columns.titles, rows, columns.numbers))

    def tell_existing(self, brokers: Sequence[str]) -> None:
        """Says on which brokers something existed that was made on others."""
        if brokers:
            self.output.note(existing=list(brokers))
            self.output.remark(f"it existed on {', '.join(brokers)} already, with the same settings")

    def confirm(self, question: str, *, yes: bool) -> None:
        """Asks before an action that cannot be undone. Raises typer.Abort for a no, KeyboardInterrupt for
        Ctrl-C, BadParameter (usage) if the input is not a terminal and --yes is not given."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise typer.BadParameter("there is no terminal to ask on: this needs --yes")
        self.progress.off()
        # asyncio's own handler would only cancel the task, which does not interrupt reading from the
        # terminal.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            typer.confirm(question, abort=True, err=True)
        except typer.Abort as abort:
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
        finally:
            signal.signal(signal.SIGINT, handler)

    async def call(self, awaitable: Awaitable[Result]) -> Result:
        """Awaits one request within --timeout, and says which brokers are not in its answer.

        Raises TroveError REQUEST_TIMEOUT."""
        try:
            answer = await asyncio.wait_for(_as_coroutine(awaitable), self.timeout_s)
            self.away.note(answer)
            return answer
        except TimeoutError:
            message = f"{self._silent()} did not answer within {self.timeout_s:g} s"
            raise TroveError(errors.REQUEST_TIMEOUT, message, server=self.server) from None

    def _within_timeout(self, options: ClientOptions) -> ClientOptions:
        """A call to one broker ends before the request does: so the answers of the others are shown."""
        ms_max = max(int(CALL_SHARE * self.timeout_s * 1_000), 1)
        return replace(
            options,
            call_timeout_ms=min(options.call_timeout_ms, ms_max),
            connect_timeout_ms=min(options.connect_timeout_ms, ms_max),
        )

    @property
    def wait_s(self) -> float:
        """The longest wait for a broker that a nameserver does not know yet, in one request."""
        return 0.9 * self.timeout_s

    def _silent(self) -> str:
        """Who has not answered: once there is a connection, a broker."""
        if self.connected is None:
            return self.server
        routes = self.connected._pool.routes.state.brokers
        known = [f"{route.broker.name} at {route.broker.address}" for route in routes]
        if not known:
            return self.server
        one_of = "" if len(known) == 1 else f"one of {len(known)} brokers: "
        more = "" if len(known) <= SILENT_SHOWN_MAX else ", …"
        return f"{one_of}broker {', '.join(known[:SILENT_SHOWN_MAX])}{more}"

    async def each(self, items: AsyncGenerator[Result]) -> AsyncGenerator[Result]:
        """The items of a stream, each awaited within --timeout; the stream is closed with the generator."""
        async with aclosing(items):
            while True:
                try:
                    item = await self.call(anext(items))
                except StopAsyncIteration:
                    return
                yield item


async def _as_coroutine(awaitable: Awaitable[Result]) -> Result:
    return await awaitable


def verb(
    app: typer.Typer, name: str, *, hidden: bool = False, bodies: bool = False
) -> Callable[
    [Callable[Concatenate[Session, Parameters], Coroutine[Any, Any, None]]],
    Callable[Concatenate[Session, Parameters], Coroutine[Any, Any, None]],
]:
    """Registers an async function as a command: it gets a Session, the command the global options.

    bodies: whether its answer has messages with bodies, for `-o body` and `-f`."""

    def register(
        function: Callable[Concatenate[Session, Parameters], Coroutine[Any, Any, None]],
    ) -> Callable[Concatenate[Session, Parameters], Coroutine[Any, Any, None]]:
        app.command(name, hidden=hidden)(_command(function, bodies=bodies))
        return function

    return register


def bare_verb(
    app: typer.Typer,
) -> Callable[
    [Callable[[Session], Coroutine[Any, Any, None]]], Callable[[Session], Coroutine[Any, Any, None]]
]:
    """Registers an async function as the act of a group of verbs where none of them is named."""

    def register(
        function: Callable[[Session], Coroutine[Any, Any, None]],
    ) -> Callable[[Session], Coroutine[Any, Any, None]]:
        app.callback(invoke_without_command=True, help=app.info.help)(_command(function, bodies=False))
        return function

    return register


def _command(function: Callable[..., Coroutine[Any, Any, None]], *, bodies: bool) -> Callable[..., None]:
    @functools.wraps(function)
    def command(
        context: typer.Context,
        server: str | None,
        context_name: str | None,
        json: bool,
        output: Format | None,
        timeout: float | None,
        **arguments: Any,
    ) -> None:
        outer = context.find_root().obj or SharedOptions()
        connecting = Connecting(**{name: arguments.pop(name) for name in NAMES})
        given = SharedOptions.given(server, context_name, json, output, timeout, connecting)
        options = given.over(outer)
        if context.invoked_subcommand is not None:  # a bare verb, and one of its group is called
            context.find_root().obj = options
            return
        if options.format is Format.BODY and not bodies:
            raise typer.BadParameter("the answer of this verb has no bodies: -o json, yaml or table")
        message_format = arguments.pop(MESSAGE_FORMAT, None)
        if message_format is not None and options.format is not None:
            raise typer.BadParameter(f"give -f or --output {options.format}, not both")
        code = run_verb(options, lambda session: function(session, **arguments), message_format)
        if code != 0:
            raise typer.Exit(code)

    signature = inspect.signature(function, eval_str=True)
    own = list(signature.parameters.values())[1:]
    parameters = [_parameter("context", typer.Context, inspect.Parameter.empty), *own]
    parameters.append(_parameter("server", ServerOption, None))
    parameters.append(_parameter("context_name", ContextOption, None))
    parameters.append(_parameter("json", JsonOption, False))
    parameters.append(_parameter("output", OutputOption, None))
    parameters.append(_parameter("timeout", TimeoutOption, None))
    if bodies:
        parameters.append(_parameter(MESSAGE_FORMAT, MessageFormatOption, None))
    parameters += verb_parameters()
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    vars(command)["__signature__"] = inspect.Signature(keyword_only)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword_only}
    vars(command).pop("__wrapped__")  # otherwise inspect would ignore the signature given here
    return command


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def run_verb(
    options: SharedOptions,
    verb: Callable[[Session], Coroutine[Any, Any, None]],
    message_format: MessageFormat | None = None,
) -> int:
    """Runs a verb to its end, prints its output, and returns the exit code."""
    output = Output.open(options.format or Format.TABLE, message_format)
    session = Session(
        options=options,
        timeout_s=options.timeout if options.timeout is not None else TIMEOUT_S_DEFAULT,
        output=output,
    )
    try:
        asyncio.run(session.run(verb(session)))
        output.finish()
    except TroveError as error:
        output.fail(session.explained(error))
        return 1
    except UnicodeEncodeError:
        output.fail(TroveError(errors.REQUEST_ILLEGAL, "an argument is not valid UTF-8"))
        return 1
    except BrokenPipeError:
        output.discard()  # the reader closed the pipe
        return 0
    except KeyboardInterrupt:
        output.interrupted()
        return 130
    except Exception as error:
        if isinstance(error, WrongUsage | typer.Abort | typer.Exit):
            raise  # wrong usage that only the verb could detect, a no to a question, a missing program
        if os.environ.get("TROVEMQ_DEBUG"):
            raise
        output.fail(TroveError(errors.UNKNOWN_ERROR, f"{type(error).__name__}: {error}"))
        return 1
    finally:
        output.close()
    return session.exit_code
