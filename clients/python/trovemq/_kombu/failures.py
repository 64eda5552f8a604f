"""Errors after which kombu and Celery connect again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_AWAY: Final = (errors.BROKER_UNREACHABLE, errors.REQUEST_TIMEOUT, errors.CLIENT_CLOSED)


class BrokerAwayError(ConnectionError):
    """The broker does not answer, or the connection is closed."""


@contextmanager
def translated() -> Iterator[None]:
    """Raises BrokerAwayError for a TroveError after which to connect again, and others as they are; both say
    what to do, because kombu and Celery print the text alone."""
    try:
        yield
    except TroveError as error:
        text, remedy = str(error), error.spec.what_to_do
        said = text.endswith(remedy)
        if error.spec in _AWAY or error.retriable:
            raise BrokerAwayError(text if said else f"{text}. {remedy}") from error
        if said:
            raise
        raise type(error)(error.spec, f"{error.message}. {remedy}", **error.fields) from error.__cause__
