"""Runs cases side by side and prints one line each: `ok NAME` or `not ok NAME: why`, then the count.

A case is a function that raises when something is not as it should be. Each has its own tags, so that
cases of this run and of earlier ones do not meet.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

ENDPOINTS = os.environ.get("ENDPOINTS", "127.0.0.1:8081")
TIME_MAX_S = float(os.environ.get("TIME_MAX_S", "100"))
RUN = uuid.uuid4().hex[:8]
Case = Callable[[], None]

cases: dict[str, Case] = {}
_open: list[Any] = []
_threads: dict[str, int] = {}
_outcomes: dict[str, str | None] = {}
_printing = threading.Lock()


def case(function: Case) -> Case:
    """Adds the function to the suite."""
    cases[function.__name__] = function
    return function


def closing(client: Any) -> Any:
    """The client is shut down when the suite ends."""
    _open.append(client)
    return client


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: {found!r}, and not {wanted!r}")


def eventually(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Waits for the condition; raises when it has not come true in time."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {within_s:.0f} s")
        time.sleep(0.05)


def refused(action: Callable[[], object], what: str) -> None:
    """The action must raise."""
    try:
        action()
    except Exception:  # each client has its own errors
        return
    raise AssertionError(f"{what} was not refused")


def _report(name: str, fault: str | None, seconds: float) -> None:
    with _printing:
        if name in _outcomes:
            return
        _outcomes[name] = fault
        text = f"ok {name}" if fault is None else f"not ok {name}: {fault}"
        print(f"{text} ({seconds:.1f} s)", flush=True)


def _where(name: str) -> str:
    """The call of the suite that a case is in."""
    frame = sys._current_frames().get(_threads.get(name, 0))
    stack = traceback.extract_stack(frame) if frame is not None else []
    calls = [f"{one.name}, line {one.lineno}" for one in stack if one.filename.endswith("suite.py")]
    return f" in {' > '.join(calls)}" if calls else ""


def _run_one(name: str, function: Case) -> None:
    _threads[name] = threading.get_ident()
    started = time.monotonic()
    fault = None
    try:
        function()
    except BaseException as error:  # whatever ends a case is its outcome
        fault = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    _report(name, fault, time.monotonic() - started)


def main() -> None:
    """Runs the cases that the command line names, or all; the exit code says whether all passed."""
    logging.getLogger("concurrent.futures").setLevel(logging.CRITICAL + 1)
    threading.excepthook = lambda _: None  # the client's own threads die loudly while it shuts down
    chosen = {name: cases[name] for name in sys.argv[1:] or cases}
    pool = ThreadPoolExecutor(len(chosen))
    futures = []
    for name, function in chosen.items():
        futures.append(pool.submit(_run_one, name, function))
        time.sleep(0.25)  # clients do not all start in one instant
    wait(futures, timeout=TIME_MAX_S)
    for name in chosen:
        _report(name, f"out of time{_where(name)}", TIME_MAX_S)
    closer = threading.Thread(target=_close_all, daemon=True)
    closer.start()
    closer.join(5)
    failed = sum(fault is not None for fault in _outcomes.values())
    print(f"{len(_outcomes) - failed} passed, {failed} failed", flush=True)
    os._exit(1 if failed else 0)  # the client leaves threads running


def _close_all() -> None:
    for client in _open:
        try:
            client.shutdown()
        except Exception:  # some were never started
            continue
