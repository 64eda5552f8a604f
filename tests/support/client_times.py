"""The SDK's bounds of time in tests: none of them ends a call because the machine is busy.

Five seconds for a server's first answer suit a client in production. Under a whole suite in random order,
with two busy loops beside it, a connection took longer, and a test failed that was about something else. A
test of a bound sets it.
"""

from __future__ import annotations

import inspect

from trovemq import ClientOptions

TIMES_MS = {
    "call_timeout_ms": 60_000,
    "connect_timeout_ms": 60_000,
    "delivery_timeout_ms": 60_000,
    "keepalive_timeout_ms": 60_000,
}


def lengthen() -> None:
    """Changes the defaults of `ClientOptions` in this process, and so those of the command line."""
    make = ClientOptions.__init__
    with_default = [
        (name, parameter.default)
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    ]
    make.__defaults__ = tuple(TIMES_MS.get(name, default) for name, default in with_default)
