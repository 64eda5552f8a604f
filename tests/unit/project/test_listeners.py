"""The ports and the end of listeners in tests."""

from __future__ import annotations

import ast
import asyncio
import gc
import socket
import warnings

import pytest

from tests.support.listeners import close_listener
from tests.unit.project.syntax import nodes_of
from tests.unit.project.test_tidy import relative, tracked_files


@pytest.mark.parametrize("turns", range(4))
def test_a_connection_that_was_accepted_last_stayed_open(turns: int) -> None:
    """It failed a test of failovers, by the warning of its transport."""

    async def scenario() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.transport.abort(), "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            for _ in range(turns):
                await asyncio.sleep(0)
            await close_listener(server)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(scenario())
        gc.collect()
    assert not seen


def test_another_process_took_the_port_before_its_daemon_listened() -> None:
    """A port of Linux's own range may be the next outgoing connection's: `free_port` gives others."""
    files = [
        path
        for path in tracked_files()
        if path.suffix == ".py" and relative(path).startswith(("tests/", "bench/"))
    ]
    assert files
    found = [f"{relative(path)}:{line}" for path in files for line in ports_given_back(path.read_text())]
    assert found == []


def test_the_rule_finds_ports_that_are_given_back() -> None:
    assert ports_given_back("with socket.create_server((HOST, 0)) as a:\n    port = a.getsockname()[1]") == [
        1
    ]
    assert ports_given_back("with socket() as a:\n    a.bind((HOST, 0))\n    return a.getsockname()[1]") == [
        1
    ]
    assert ports_given_back("with socket.create_server((HOST, 0)) as a:\n    start(a.getsockname())") == []


def ports_given_back(text: str) -> list[int]:
    """Lines of blocks that ask a socket for its port and close it."""
    return [
        node.lineno
        for node in nodes_of(ast.parse(text))
        if isinstance(node, ast.With)
        and "getsockname" in ast.dump(node)
        and "Constant(value=0)" in ast.dump(node)
        and all(isinstance(one, ast.Assign | ast.AnnAssign | ast.Return) or _binds(one) for one in node.body)
    ]


def _binds(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "bind"
