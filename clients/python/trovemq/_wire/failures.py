"""Converts gRPC errors and error messages of the wire to TroveError."""

from __future__ import annotations

import asyncio
from typing import Any

from trovemq_proto import errors
from trovemq_proto.channels import CallFailure, Status
from trovemq_proto.errors import TroveError
from trovemq_proto.unanswered import why_unanswered
from trovemq_proto.v1 import common_pb2

ERROR_METADATA_KEY = "trovemq-error-bin"

_SPEC_OF_STATUS = {
    "UNAVAILABLE": errors.BROKER_UNREACHABLE,
    "CANCELLED": errors.BROKER_UNREACHABLE,
    # Our servers describe their own errors; INTERNAL without a description is a broken connection.
    "INTERNAL": errors.BROKER_UNREACHABLE,
    "DEADLINE_EXCEEDED": errors.REQUEST_TIMEOUT,
    "RESOURCE_EXHAUSTED": errors.LIMIT_EXCEEDED,
    "INVALID_ARGUMENT": errors.REQUEST_ILLEGAL,
    "UNIMPLEMENTED": errors.REQUEST_ILLEGAL,
}


def error_from_wire(error: common_pb2.Error) -> TroveError:
    """The error that a peer has described."""
    return errors.from_wire(error.symbol, error.message, dict(error.fields))


def error_from_status(status: Status, details: str | None, trailer: Any, server: str) -> TroveError:
    """The error for the end of a call to `server` (HOST:PORT): the peer's own error if it sent one."""
    for key, value in trailer or ():
        if key == ERROR_METADATA_KEY:
            return error_from_wire(common_pb2.Error.FromString(value))
    if status.name == "OK":
        return unreachable(server, "the server closed the stream")
    spec = _SPEC_OF_STATUS.get(status.name, errors.UNKNOWN_ERROR)
    text = f"{server}: {why_unanswered(status.name, details)}"
    return TroveError(spec, text, server=server, grpc_status=status.name)


def error_from_grpc(failure: CallFailure, server: str) -> TroveError:
    """The error for a failed call."""
    return error_from_status(failure.code(), failure.details(), failure.trailing_metadata(), server)


async def error_of_call(call: Any, failure: BaseException, server: str) -> TroveError:
    """Why a call failed, when gRPC raised `failure`.

    gRPC reports a call that ended during a wait as an RpcError, as a misuse, or as a cancellation that no
    caller requested; the call itself has its status. A real cancellation is raised.
    """
    if isinstance(failure, CallFailure):
        return _with_unread(call, error_from_grpc(failure, server))
    task = asyncio.current_task()
    if isinstance(failure, asyncio.CancelledError) and task is not None and task.cancelling():
        raise failure
    error = error_from_status(await call.code(), await call.details(), await call.trailing_metadata(), server)
    return _with_unread(call, error)


def _with_unread(call: Any, error: TroveError) -> TroveError:
    """Our own transport knows of some calls that no server looked at them."""
    if getattr(call, "unprocessed", False):
        error.fields[errors.UNREAD] = "true"
    return error


def unreachable(server: str, why: str) -> TroveError:
    """BROKER_UNREACHABLE for a server that closed the connection."""
    return TroveError(errors.BROKER_UNREACHABLE, f"{server}: {why}", server=server)
