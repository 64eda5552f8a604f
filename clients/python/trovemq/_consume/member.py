"""The membership of a client in its group at one broker, by their Consume stream: its settings, its signs of
life, and the answers to commands.

| event                    | reaction                                                        |
|--------------------------|-----------------------------------------------------------------|
| the first reply          | has the group's settings: the client is a member                |
| `HEARTBEAT_SECONDS` over | a frame, even if there is nothing else to send                  |
| a command                | its answer is in a later frame; `COMMANDS_AT_ONCE_MAX` at once, |
|                          | further ones are refused                                        |
| the subscription closes  | the last frame says so                                          |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from trovemq._consume import commands
from trovemq._wire.consumer import Command, CommandAnswer
from trovemq.models.group import GroupSettings
from trovemq.received import Handler
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 10.0
COMMANDS_AT_ONCE_MAX: Final = 16
OF_MEMBERS: Final = (
    errors.TOPIC_NOT_FOUND,
    errors.FILTER_ILLEGAL,
    errors.INVISIBLE_DURATION_ILLEGAL,
    errors.PERMISSION_MISSING,
)
"""Refusals of a client that is a member already. The reply before them, with the settings, may be lost."""


class Member:
    """The membership at one broker; its stream may break and be opened again.

    Args:
        broker: The broker's name.
        handler: Consumes a message that an operator sends directly.
        wake: Called when there is something to send.

    Attributes:
        settings: The group's newest settings; None before the first.
        leaving: Whether the next frame is to be the last.
    """

    def __init__(self, broker: str, handler: Handler | None, wake: Callable[[], None]) -> None:
        self._broker = broker
        self._handler = handler
        self._wake = wake
        self._known = asyncio.Event()  # settings or a failure have arrived
        self._failure: TroveError | None = None
        self._beat_is_due = False
        self._answers: list[CommandAnswer] = []
        self._commands: set[asyncio.Task[None]] = set()
        self.settings: GroupSettings | None = None
        self.leaving = False

    async def opened(self, timeout_ms: int) -> None:
        """Waits until the client is a member. Raises TroveError if the last attempt has failed, or
        REQUEST_TIMEOUT."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._known.wait()
        except TimeoutError:
            text = f"broker {self._broker} did not answer with the group's settings"
            raise TroveError(errors.REQUEST_TIMEOUT, text, broker=self._broker) from None
        if self.settings is None and self._failure is not None:
            raise self._failure

    def wait_again(self) -> None:
        """`opened` waits for the next attempt; without effect on a member."""
        if self.settings is None:
            self._known.clear()

    def joined(self, settings: GroupSettings) -> None:
        """The broker's settings have arrived."""
        self.settings = settings
        self._known.set()

    def failed(self, error: TroveError) -> None:
        """An attempt to open the stream has failed."""
        self._failure = None if error.spec in OF_MEMBERS else error
        self._known.set()

    # --- frames ---------------------------------------------------------------------------------------
    async def beat(self) -> None:
        """Lets the stream send signs of life. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._beat_is_due = True
            self._wake()

    @property
    def has_frame(self) -> bool:
        """Whether a frame is due, even an empty one."""
        return self._beat_is_due or self.leaving or bool(self._answers)

    def take_answers(self) -> list[CommandAnswer]:
        """The answers for the next frame, which is a sign of life in any case."""
        self._beat_is_due = False
        answers, self._answers = self._answers, []
        return answers

    # --- commands -------------------------------------------------------------------------------------
    def on_command(self, command: Command) -> None:
        """Answers the command in the background."""
        if len(self._commands) >= COMMANDS_AT_ONCE_MAX:
            self._answer(commands.busy(command))
            return
        name = f"command of broker {self._broker}"
        task = asyncio.get_running_loop().create_task(self._obey(command), name=name)
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def _obey(self, command: Command) -> None:
        try:
            self._answer(await commands.answer_to(command, self._broker, self._handler))
        except Exception:  # a failed command must not end the membership
            _log.exception("a command of broker %s failed", self._broker)

    def _answer(self, answer: CommandAnswer) -> None:
        self._answers.append(answer)
        self._wake()

    async def close(self) -> None:
        """Ends the commands."""
        tasks = list(self._commands)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
