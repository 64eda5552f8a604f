"""Why a message is not consumed, as the broker keeps it with the dead letter."""

from __future__ import annotations

import logging
import re
from typing import Final

from trovemq._wire.consumer import Reason
from trovemq.options import ClientOptions
from trovemq_proto.records.dead_letter_reason import ERROR_SIZE_MAX, TEXT_SIZE_MAX, cut

_log = logging.getLogger(__name__)
_SECRET: Final = re.compile(r"(?<=://)([^:@/\s]*):[^@/\s]*@")
"""The secret of a user in an address, as the errors of many a database driver have it."""


def reason_of_program(text: str, options: ClientOptions) -> Reason:
    """The reason that the program gives in words."""
    return Reason(text=_redacted(text, options))


def reason_of_failure(failure: BaseException, options: ClientOptions, *, with_text: bool = True) -> Reason:
    """The type of the exception, and its text unless the options leave it out."""
    error = cut(_name_of(type(failure)), ERROR_SIZE_MAX)
    if not (with_text and options.failure_texts):
        return Reason(error)
    return Reason(error, _redacted(text_of(failure), options))


def text_of(failure: BaseException) -> str:
    """The exception's text, also where its class cannot give it."""
    try:
        return str(failure)
    except Exception as broken:
        return f"(its text cannot be read: {type(broken).__name__})"


def _name_of(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _redacted(text: str, options: ClientOptions) -> str:
    """The result of the hook; no text if it fails: the text might be a secret. Without a hook the secrets of
    addresses are masked."""
    if options.redact is None:
        text = _SECRET.sub(r"\1:***@", text)
    elif text:
        try:
            kept: object = options.redact(text)
        except Exception:
            _log.exception("the hook `redact` failed, so a reason has no text")
            return ""
        if not isinstance(kept, str):
            _log.error("the hook `redact` returned %s, so a reason has no text", type(kept).__name__)
            return ""
        text = kept
    return cut(text, TEXT_SIZE_MAX)
