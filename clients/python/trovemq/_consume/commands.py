"""Answers brokers' commands on the Consume stream."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
from contextlib import closing
from types import FrameType
from typing import Any, Final

from trovemq._common.calling import Calling
from trovemq._consume.streamed import StreamedBatch
from trovemq._wire.consumer import Command, CommandAnswer, CommandResult, DirectMessage, Run
from trovemq.received import NO_SETTLEMENT, Handler, ReceivedMessage
from trovemq_proto.errors import TroveError

ANSWER_TEXT_SIZE_MAX: Final = 1_024  # of a direct consumption
STACK_TEXT_SIZE_MAX: Final = 1 << 20  # characters
TASKS_SHOWN_MAX: Final = 1_000
FRAMES_SHOWN_MAX: Final = 200  # of one thread or task


async def answer_to(command: Command, broker: str, handler: Handler | None) -> CommandAnswer:
    """The answer to a command of the broker."""
    if command.message is None:
        return CommandAnswer(nonce=command.nonce, text=stack_text())
    result, text = await _consume_directly(command.message, broker, handler)
    return CommandAnswer(nonce=command.nonce, result=result, text=text[:ANSWER_TEXT_SIZE_MAX])


def busy(command: Command) -> CommandAnswer:
    """The answer if there are too many commands at once."""
    text = "the client is at work on other commands"
    return CommandAnswer(nonce=command.nonce, result=CommandResult.BUSY, text=text)


async def _consume_directly(
    message: DirectMessage, broker: str, handler: Handler | None
) -> tuple[CommandResult, str]:
    """Has the program's handler consume a message; offsets and attempts do not change."""
    if handler is None:
        return CommandResult.NOT_SUPPORTED, "the subscriber has no handler"
    try:
        received = _received(message, broker)
    except TroveError as error:
        return CommandResult.DAMAGED, error.message
    try:
        with closing(Calling(handler, 1, "trovemq direct")) as calling:
            await calling.call(received)
    except Exception as failure:  # the operator gets whatever the program raises
        return CommandResult.FAILED, f"{type(failure).__name__}: {failure}"
    return CommandResult.DONE, "OK"


def _received(message: DirectMessage, broker: str) -> ReceivedMessage:
    """The message for the program, which cannot settle it. Raises TroveError if its record is not
    readable."""
    batch = StreamedBatch(
        [Run(message.queue_id, message.queue_offset, 1, 1, "")],
        memoryview(message.record),
        topic=message.topic,
        broker=broker,
        poll=0,
        lease_end=None,
        settlement=NO_SETTLEMENT,
    )
    for error in batch.unreadable.values():
        raise error
    (received,) = batch
    received.receipt_handle = ""
    return received


def stack_text() -> str:
    """All threads, then all tasks; cut after STACK_TEXT_SIZE_MAX characters."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        out.write(f"thread {names.get(ident, '?')} ({ident})\n")
        _write_frames(out, [inner for inner, _line in traceback.walk_stack(frame)])
    for task in list(asyncio.all_tasks())[:TASKS_SHOWN_MAX]:
        out.write(f"task {task.get_name()}\n")
        _write_frames(out, _frames_of(task)[::-1])
        if out.tell() > STACK_TEXT_SIZE_MAX:
            break
    return out.getvalue()[:STACK_TEXT_SIZE_MAX]


def _frames_of(task: asyncio.Task[Any]) -> list[FrameType]:
    """The frames of a task, outermost first. Task.get_stack would return only the outermost one."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < FRAMES_SHOWN_MAX:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            frames.append(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames


def _write_frames(out: io.StringIO, frames: list[FrameType]) -> None:
    """Innermost first, like thread dumps of other languages; names and lines, no source text."""
    for frame in frames[:FRAMES_SHOWN_MAX]:
        code = frame.f_code
        out.write(f"    at {code.co_qualname} ({code.co_filename}:{frame.f_lineno})\n")
    out.write("\n")
