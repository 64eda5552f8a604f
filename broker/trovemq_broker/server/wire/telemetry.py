"""The telemetry stream: a client's messages to commands, and the answers to them."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from trovemq_broker.server.wire.client_commands import CommandAnswer, telemetry_answer
from trovemq_broker.server.wire.client_settings import ClientSettings, client_settings
from trovemq_broker.server.wire.statuses import Malformed, status_of
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2.service_pb2 import TelemetryCommand

ANSWER_SIZE_MAX: Final = 1 << 20
"""Of an answer that is passed on to other brokers."""


def telemetry_event(command: object) -> ClientSettings | CommandAnswer | Malformed | None:
    """The command of a message; None if nothing is done for it. Raises TroveError and ClientTypeError for
    illegal settings."""
    if isinstance(command, Malformed):
        return command
    assert isinstance(command, TelemetryCommand), "the method's reader made it"
    kind = command.WhichOneof("command")
    if kind == "settings":
        return client_settings(command.settings)
    return telemetry_answer(command) if kind in ("thread_stack_trace", "verify_message_result") else None


def read_command(data: bytes) -> TelemetryCommand | None:
    """A command of another broker for a client; None for settings, and for bytes that are not readable. The
    client gets the settings of the broker that it has called."""
    try:
        command = TelemetryCommand.FromString(data)
    except DecodeError:
        return None
    return None if command.WhichOneof("command") in (None, "settings") else command


def settings_as_bytes(command: object) -> bytes:
    """A command with the settings alone, whose size is checked: the rest of a message has no limit."""
    assert isinstance(command, TelemetryCommand), "the method's reader made it"
    return TelemetryCommand(settings=command.settings).SerializeToString()


def answer_as_bytes(command: object) -> bytes:
    """The answer to a command; empty for one that is too large to wait for another broker."""
    assert isinstance(command, TelemetryCommand), "the method's reader made it"
    return command.SerializeToString() if command.ByteSize() <= ANSWER_SIZE_MAX else b""


def refused_command(error: TroveError) -> TelemetryCommand:
    """The only message of a stream that is refused."""
    return TelemetryCommand(status=status_of(error))
