"""Reads the JSON in the bodies of requests."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

BODY_SIZE_MAX: Final = 1 << 20
Data = TypeVar("Data")


def read_body(decoder: msgspec.json.Decoder[Data], request: Request) -> Data:
    """TroveError REQUEST_ILLEGAL."""
    if len(request.body) > BODY_SIZE_MAX:
        text = f"the body has {len(request.body)} bytes, the limit is {BODY_SIZE_MAX}"
        raise TroveError(errors.REQUEST_ILLEGAL, text)
    try:
        return decoder.decode(request.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TroveError(errors.REQUEST_ILLEGAL, f"the body cannot be read: {error}") from None
