"""The five look-ups that the demo shows: the very commands, run, with their answers."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deploy.demo import flights
from deploy.demo.daemons import DemoError

if TYPE_CHECKING:
    from trovemq import Client

SERVER_DEFAULT: Final = "127.0.0.1:8081"


@dataclass(frozen=True, slots=True)
class Example:
    """One look-up: its title, and the arguments of each of its commands."""

    title: str
    commands: tuple[tuple[str, ...], ...]


async def choose_examples(client: Client) -> list[Example]:
    """Five look-ups; identifiers and times are taken from a message in the middle of a queue."""
    queue_id = 3
    offset = flights.QUEUE_LENGTHS[queue_id] // 2
    message = await client.get_at(flights.TOPIC, queue_id, offset)
    moment = datetime.fromtimestamp(message.store_timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    time = moment.replace("+00:00", "Z")
    first_at = await client.search_offset(flights.TOPIC, queue_id, message.store_timestamp)
    topic, queue = flights.TOPIC, str(queue_id)
    return [
        Example(
            "all flights of one aircraft, by its tail number", (("query", topic, "N14228", "--max", "3"),)
        ),
        Example("all days of one flight, by carrier and number", (("query", topic, "B6371", "--max", "3"),)),
        Example(
            "all flights of one carrier, by tag", (("query", topic, "HA", "--type", "tag", "--max", "3"),)
        ),
        Example(
            "one message, by offsetMsgId or by message id",
            (("get", message.offset_msg_id), ("get", "flight-000000")),
        ),
        Example(
            "the message at a point in time",
            (
                ("offset", topic, queue, "--time", time),
                ("pull", topic, "--queue", queue, "--offset", str(first_at), "--max", "3"),
            ),
        ),
    ]


async def show_examples(examples: Sequence[Example], server: str, say: Callable[[str], None]) -> None:
    """Runs the examples' commands and says each with its answer. Raises DemoError where one fails."""
    commands = [arguments for example in examples for arguments in example.commands]
    together = asyncio.Semaphore(os.cpu_count() or 1)
    running = [asyncio.create_task(run_command(arguments, server, together)) for arguments in commands]
    answers = iter(running)
    try:
        for number, example in enumerate(examples, start=1):
            say(f"\n{number}. {example.title}")
            for arguments in example.commands:
                say(f"   $ {command_line(arguments, server)}")
                for line in (await next(answers)).splitlines():
                    say(f"     {line.rstrip()}")
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def command_line(arguments: tuple[str, ...], server: str) -> str:
    """The command as it can be typed here."""
    other_server = () if server == SERVER_DEFAULT else ("--server", server)
    return shlex.join((_program(), *other_server, *arguments))


def _program() -> str:
    """`trovemq`, or its path where the shell would not find it."""
    program = Path(sys.executable).with_name("trovemq")
    if shutil.which("trovemq") == str(program):
        return "trovemq"
    return os.path.relpath(program) if program.is_relative_to(Path.cwd()) else str(program)


async def run_command(arguments: tuple[str, ...], server: str, together: asyncio.Semaphore) -> str:
    """The standard output of `trovemq ARGUMENTS`; not more at a time than `together` allows."""
    async with together:
        return await _run(arguments, server)


async def _run(arguments: tuple[str, ...], server: str) -> str:
    columns = str(max(shutil.get_terminal_size((120, 24)).columns - 6, 60))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trovemq.cli", "--server", server, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": columns},
    )
    output, error = await process.communicate()
    if process.returncode != 0:
        raise DemoError(
            f"`{command_line(arguments, server)}` failed: {error.decode(errors='replace').strip()}"
        )
    return output.decode()
