"""The package as others get it: the programs of its README, its modules' size, its types."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

from trovemq.testing import free_port
from trovemq_rpc import options
from trovemq_rpc.http2 import limits

PROJECT = Path(__file__).resolve().parents[3] / "rpc"
PACKAGE = PROJECT / "trovemq_rpc"
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if not path.stem.endswith("_pb2")]
MODULE_LINES_MAX = 400
PROGRAM_LINES_MAX = 20
ADDRESS = "127.0.0.1:50051"
PLAIN_NUMBERS = ("http2/constants.py", "http2/events.py", "http2/streams.py", "http2/hpack_tables.py")
"""Modules of numbers that are the protocol's, or names for things of ours, and no limits."""


def programs() -> list[str]:
    """The README's server and client."""
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    return blocks[:2]


def test_the_readmes_programs_are_short() -> None:
    assert [len(program.splitlines()) <= PROGRAM_LINES_MAX for program in programs()] == [True, True]


def test_the_readmes_client_calls_the_readmes_server() -> None:
    address = f"127.0.0.1:{free_port()}"
    server, client = (program.replace(ADDRESS, address) for program in programs())
    with subprocess.Popen([sys.executable, "-W", "error", "-c", server]) as serving:
        try:
            call = client.replace("timeout=5", "timeout=60, wait_for_ready=True")
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", call],
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
        finally:
            serving.terminate()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "b'hello world'\nStatusCode.INVALID_ARGUMENT who are you?\n"


def test_no_module_is_beyond_400_lines() -> None:
    lines = {str(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: count for name, count in lines.items() if count > MODULE_LINES_MAX} == {}


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_each_number_of_a_module_is_explained() -> None:
    """By a comment on its lines or above them, or by a string below."""
    silent = []
    for path in MODULES:
        name = path.relative_to(PACKAGE).as_posix()
        silent += [f"{name}: {number}" for number in unexplained(path) if name not in PLAIN_NUMBERS]
    assert silent == []


def unexplained(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    body = ast.parse("\n".join(lines)).body
    found = []
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign | ast.Assign) or not is_number(statement.value):
            continue
        above, own = lines[statement.lineno - 2], lines[statement.lineno - 1 : statement.end_lineno]
        if "#" not in "".join(own) and not above.startswith("#") and not is_text(following):
            found.append(own[0])
    return found


def table_of(module: ModuleType) -> dict[str, str]:
    """The first two columns of the table in the module's docstring."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]*) \|", module.__doc__ or "", re.MULTILINE)[2:]
    return {name.strip(): value.strip() for name, value in rows}


def test_the_table_of_limits_has_every_limit_with_its_default() -> None:
    def number(text: str) -> int:
        digits, unit = re.match(r"([\d,]+)( [KM]iB)?", text).groups()  # type: ignore[union-attr]
        return int(digits.replace(",", "")) << {None: 0, " KiB": 10, " MiB": 20}[unit]

    written = {name: number(default) for name, default in table_of(limits).items()}
    assert written == {field.name: field.default for field in fields(limits.Limits)}


def test_the_table_of_options_has_every_option() -> None:
    code = (PACKAGE / "options.py").read_text().replace(options.__doc__ or "", "")
    known = set(re.findall(r'"((?:grpc|trovemq)\.\w[\w.]*)"', code))
    assert set(table_of(options)) == known


def is_number(value: ast.expr | None) -> bool:
    leaves = [node for node in ast.walk(value) if isinstance(node, ast.expr)] if value else []
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp)
    return bool(leaves) and all(
        isinstance(leaf, kinds) and isinstance(getattr(leaf, "value", 0), int | float) for leaf in leaves
    )


def is_text(statement: ast.stmt | None) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
