"""Answers brokers' commands on the Telemetry stream."""

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
from trovemq._rocketmq import statuses
from trovemq._rocketmq.messages import received_message
from trovemq.received import Handler
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

STACK_TEXT_SIZE_MAX: Final = 1 << 20  # characters
TASKS_SHOWN_MAX: Final = 1_000
FRAMES_SHOWN_MAX: Final = 200  # of one thread or task


async def verify(
    command: service_pb2.VerifyMessageCommand, broker: str, handler: Handler | None
) -> service_pb2.TelemetryCommand:
    """Has the program's handler consume a message directly; offsets and attempts do not change."""
    reply = service_pb2.TelemetryCommand(
        verify_message_result=service_pb2.VerifyMessageResult(nonce=command.nonce)
    )
    reply.status.CopyFrom(await _consume_directly(command.message, broker, handler))
    return reply


async def _consume_directly(message: v2.Message, broker: str, handler: Handler | None) -> v2.Status:
    if handler is None:
        return statuses.status(v2.Code.NOT_IMPLEMENTED, "the subscriber has no handler")
    try:
        received = received_message(message, broker)
    except TroveError as error:
        return statuses.status(v2.Code.MESSAGE_CORRUPTED, error.message)
    try:
        with closing(Calling(handler, 1, "trovemq direct")) as calling:
            await calling.call(received)
    except Exception as failure:  # the operator gets whatever the program raises
        return statuses.status(v2.Code.FAILED_TO_CONSUME_MESSAGE, f"{type(failure).__name__}: {failure}")
    return statuses.status(v2.Code.OK, "OK")


def busy(command: service_pb2.VerifyMessageCommand) -> service_pb2.TelemetryCommand:
    """The answer if there are too many commands at once."""
    return service_pb2.TelemetryCommand(
        status=statuses.status(v2.Code.TOO_MANY_REQUESTS, "the client is at work on other commands"),
        verify_message_result=service_pb2.VerifyMessageResult(nonce=command.nonce),
    )


def stacks(command: service_pb2.PrintThreadStackTraceCommand) -> service_pb2.TelemetryCommand:
    """The stacks of this process's threads and of this event loop's tasks."""
    return service_pb2.TelemetryCommand(
        status=statuses.status(v2.Code.OK, "OK"),
        thread_stack_trace=service_pb2.ThreadStackTrace(nonce=command.nonce, thread_stack_trace=stack_text()),
    )


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
