"""The tree keeps its own rules: small modules, calls only in their packages, no traces of one machine.

import-linter checks who imports whom and ruff the style; the rules here are those that they cannot check.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.project.syntax import nodes_of

ROOT = Path(__file__).resolve().parents[3]
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
TEST_NAME_LENGTH_MAX = 70
ONE_ASSERTION_MAX = 2
"""Functions of the engine with one assertion: two are wanted where there is any. The number only falls."""
README_LINES_MAX = 4  # of a folder of tests
MERGED_BEGIN = 50
"""Two lines of a merged page that begin with this number of equal characters are one line twice."""
CODE = (
    "broker/trovemq_broker",
    "store/trovemq_store",
    "nameserver/trovemq_nameserver",
    "daemon/trovemq_daemon",
    "proto/trovemq_proto",
    "rpc/trovemq_rpc",
    "clients/python/trovemq",
    "console/trovemq_console",
)
ENGINE = (
    "store/trovemq_store",
    "proto/trovemq_proto/records",
)
WITH_ASSERTIONS = (
    *ENGINE,
    *(
        f"broker/trovemq_broker/{name}"
        for name in (
            "groups",
            "timers",
            "transactions",
            "filters",
            "atomic",
            "state",
            "query",
            "track",
            "produce",
        )
    ),
)
NOT_OURS = {".git", ".venv", "data", "build", "dist", "__pycache__"}


@functools.cache
def tracked_files() -> tuple[Path, ...]:
    """Files that are or would be committed; without git, everything but caches, builds and the store."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        names = listed.stdout.decode().split("\0")
        return tuple(ROOT / name for name in sorted(names) if name and (ROOT / name).is_file())
    return tuple(sorted(path for path in ROOT.rglob("*") if path.is_file() and is_ours(path)))


def is_ours(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    hidden_cache = any(part.endswith(("_cache", ".egg-info")) for part in parts)
    return (
        not hidden_cache
        and not NOT_OURS.intersection(parts)
        and not parts[0].startswith((".hypothesis", ".venv-"))
    )


@functools.cache
def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def within(path: Path, places: tuple[str, ...]) -> bool:
    return any(relative(path) == place or relative(path).startswith(place + "/") for place in places)


def text_of(path: Path) -> str | None:
    """The file's text; None where it is binary."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def modules(places: tuple[str, ...] = (*CODE, "deploy", "bench", "docs", "tools", "tests")) -> list[Path]:
    """Our own Python modules, without generated ones."""
    found = [path for path in tracked_files() if path.suffix == ".py" and within(path, places)]
    return [path for path in found if not path.stem.endswith("_pb2")]


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a module that the rules need: it is parsed and walked once. What has a line begins with
    it."""

    empty: bool
    documented: bool
    calls: tuple[tuple[int, str], ...]
    dropped: tuple[tuple[int, str], ...]  # calls whose result is dropped
    functions: tuple[tuple[int, str, int], ...]  # with the lines of their bodies
    one_assertion: tuple[tuple[int, str], ...]  # functions of WITH_ASSERTIONS
    imports: tuple[str, ...]
    silent_classes: tuple[tuple[int, str], ...]


@functools.cache
def facts_of(path: Path) -> Facts:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    calls, dropped, functions, one_assertion = [], [], [], []
    imports: list[str] = []
    asserts = within(path, WITH_ASSERTIONS)
    for node in nodes_of(tree):
        if isinstance(node, ast.Call):
            calls.append((node.lineno, called(node)))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            dropped.append((node.lineno, called(node.value)))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.lineno, node.name, body_lines(node)))
            if asserts and assertions(node) == 1:
                one_assertion.append((node.lineno, node.name))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports += imported_names(node)
    return Facts(
        empty=not tree.body,
        documented=ast.get_docstring(tree) is not None,
        calls=tuple(calls),
        dropped=tuple(dropped),
        functions=tuple(functions),
        one_assertion=tuple(one_assertion),
        imports=tuple(imports),
        silent_classes=tuple(
            (node.lineno, node.name)
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not ast.get_docstring(node)
        ),
    )


def called(node: ast.Call) -> str:
    """`module.function` or `function` of a call; "" for anything else."""
    if isinstance(node.func, ast.Name):
        return node.func.id
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return f"{node.func.value.id}.{node.func.attr}"
    return ""


def calls_of(paths: list[Path], names: set[str]) -> list[str]:
    """Where one of `names` is called, as `file:line name`."""
    return [
        f"{relative(path)}:{line} {name}"
        for path in paths
        for line, name in facts_of(path).calls
        if name in names
    ]


# --- size -------------------------------------------------------------------------------------------
def test_modules_are_small() -> None:
    lines = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {name: count for name, count in lines.items() if count > MODULE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    long = [
        f"{relative(path)}:{line} {name}: {lines}"
        for path in modules(CODE)
        for line, name, lines in facts_of(path).functions
        if lines > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_names_of_tests_are_short() -> None:
    long = [
        f"{relative(path)}:{line} {name}"
        for path in modules(("tests",))
        for line, name, _ in facts_of(path).functions
        if name.startswith("test_") and len(name) > TEST_NAME_LENGTH_MAX
    ]
    assert long == []


def test_functions_with_one_assertion_only_become_fewer() -> None:
    empty = [place for place in WITH_ASSERTIONS if not modules((place,))]
    assert empty == [], "a folder that moved is examined no longer"
    found = [
        f"{relative(path)}:{line} {name}"
        for path in modules(WITH_ASSERTIONS)
        for line, name in facts_of(path).one_assertion
    ]
    assert len(found) <= ONE_ASSERTION_MAX, "state a second invariant: at the beginning, or of the result"


def assertions(node: ast.AST) -> int:
    """Of a function, without those of the functions in it. Only statements have statements in them."""
    inner = [
        child
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case)
        and not isinstance(child, ast.FunctionDef | ast.ClassDef)
    ]
    return sum(isinstance(child, ast.Assert) + assertions(child) for child in inner)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last one."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return 0 if not body else (node.end_lineno or 0) - body[0].lineno + 1


# --- calls in their packages ---------------------------------------------------------------------------
def test_only_the_seam_touches_the_disk() -> None:
    """Elsewhere a write or a sync would go round the fake disks of the tests.

    A backup writes outside of the store, by directories and descriptors.
    """
    seam = ("store/trovemq_store/files", "store/trovemq_store/backup/copying.py")
    outside = [
        path for path in modules(("store/trovemq_store", "broker", "nameserver")) if not within(path, seam)
    ]
    calls = {
        "os.fsync",
        "os.fdatasync",
        "os.pwrite",
        "os.pwritev",
        "os.posix_fallocate",
        "os.ftruncate",
        "mmap.mmap",
    }
    assert calls_of(outside, calls) == []


def test_the_engine_takes_its_time_from_the_caller() -> None:
    clocks = {
        "time.time",
        "time.time_ns",
        "time.monotonic",
        "time.monotonic_ns",
        "time.sleep",
        "datetime.now",
    }
    assert calls_of(modules(ENGINE), clocks) == []


def test_the_engine_is_deterministic() -> None:
    imported = [
        f"{relative(path)}: {name}"
        for path in modules(ENGINE)
        for name in facts_of(path).imports
        if name.split(".")[0] in {"asyncio", "random", "secrets", "socket", "threading", "time", "uuid"}
    ]
    assert imported == ["store/trovemq_store/files/lmdb_trees.py: threading"], (
        "which waits for readers of other threads"
    )


def imported_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module


def test_generated_messages_stop_where_the_architecture_says() -> None:
    sdk = "clients/python/trovemq"
    edges = (
        "broker/trovemq_broker/server",
        "broker/trovemq_broker/cluster",
        "nameserver/trovemq_nameserver",
        f"{sdk}/_wire",
    )
    named = (
        "broker/trovemq_broker/daemon/broker_services.py",  # services
        "broker/trovemq_broker/cluster_config/protobuf.py",  # for both ends of a stream between brokers
        "daemon/trovemq_daemon/handler_guard.py",  # an error
        *(f"{sdk}/_consume/{name}.py" for name in ("group_subscription", "grouped")),  # members' settings
    )
    inside = [path for path in modules(CODE) if not within(path, (*edges, *named, "proto"))]
    generated = ("trovemq_proto.v1", "trovemq_proto.rocketmq.v2")
    found = [relative(path) for path in inside if set(generated) & set(facts_of(path).imports)]
    assert found == []


def test_the_daemons_log_and_only_command_lines_print() -> None:
    quiet = [
        path
        for path in modules(CODE)
        if path.name != "__main__.py"
        and not within(path, ("broker/trovemq_broker/tools", "clients/python/trovemq/cli"))
    ]
    assert calls_of(quiet, {"print"}) == []


def test_unit_tests_do_not_sleep() -> None:
    """An integration test may pause between two looks at another process."""
    assert calls_of(modules(("tests/unit",)), {"time.sleep"}) == []


def test_every_task_is_kept() -> None:
    """asyncio holds its tasks weakly: a task without a reference may vanish in the middle of its work."""
    makers = {"asyncio.create_task", "asyncio.ensure_future", "loop.create_task"}
    dropped = [
        f"{relative(path)}:{line}"
        for path in modules()
        for line, name in facts_of(path).dropped
        if name in makers
    ]
    assert dropped == []


# --- packages and docstrings ------------------------------------------------------------------------
@pytest.mark.parametrize(
    "folder",
    ["proto", "store", "rpc", "daemon", "nameserver", "broker", "clients", "clients/python", "tests"],
)
def test_folders_that_must_not_become_packages(folder: str) -> None:
    """`proto` is also the import name of proto-plus; `broker`, `clients`, `tests` would collide with
    anybody's."""
    assert not (ROOT / folder / "__init__.py").exists()
    if folder == "tests":
        assert [relative(path) for path in modules(("tests",)) if path.name == "__init__.py"] == []


def test_every_folder_of_tests_says_what_it_shows() -> None:
    """In a README.md: a heading, and one to four lines (tests/golden has a page)."""
    folders = {path.parent for path in modules(("tests",)) if path.name.startswith("test_")}
    folders |= {ROOT / Path(*path.relative_to(ROOT).parts[:2]) for path in modules(("tests",))}
    wrong = [
        relative(folder)
        for folder in sorted(folders)
        if folder.is_dir() and not 1 <= len(readme_lines(folder)) <= README_LINES_MAX
    ]
    assert wrong == []


def test_support_of_one_test_lies_beside_it() -> None:
    users: dict[str, list[Path]] = {}
    for path in modules(("tests",)):
        for name in facts_of(path).imports:
            if name.startswith("tests.support."):
                users.setdefault(name, []).append(path)
    lonely = {
        name: relative(paths[0])
        for name, paths in users.items()
        if len(set(paths)) == 1 and paths[0].name.startswith("test_")
    }
    assert len(users) > 40
    assert lonely == {}


def readme_lines(folder: Path) -> list[str]:
    """The text below the heading; nothing where there is no README.md."""
    path = folder / "README.md"
    text = text_of(path) if path.is_file() else None
    return [line for line in (text or "").splitlines()[1:] if line]


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        relative(path) for path in modules() if not facts_of(path).empty and not facts_of(path).documented
    ]
    assert silent == []


def test_what_other_projects_import_says_what_it_is() -> None:
    """Public classes of the SDK and of the protocol package; inside the daemons a reviewer decides."""
    silent = [
        f"{relative(path)}:{line} {name}"
        for path in modules(("proto/trovemq_proto", "clients/python/trovemq"))
        for line, name in facts_of(path).silent_classes
        if not name.startswith("_")
    ]
    assert silent == []


# --- no traces of one machine -----------------------------------------------------------------------
MACHINE_PATHS = re.compile(r"(?<![\w.:/])/" + r"(?:work|root|home/\w+|Users/\w+)/")
REGISTRY_HOSTS = re.compile(r"(?:pypi|pythonhosted|docker|ghcr|quay|npmjs)\.(?:org|io|com)\b")


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, REGISTRY_HOSTS], ids=["paths", "registries"])
def test_no_text_names_a_machine(pattern: re.Pattern[str]) -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()[:80]}"
        for path in tracked_files()
        for number, line in enumerate((text_of(path) or "").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("locks/*.txt")), ids=lambda path: path.name)
def test_locks_have_hashes_and_no_addresses(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
    entries = re.split(r"\n(?=\S)", text.strip())
    without = [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry]
    assert entries
    assert without == []


def test_no_lock_that_names_hosts_is_committed() -> None:
    names = {path.name for path in tracked_files()}
    assert names.isdisjoint({"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock"})


def test_no_line_of_a_page_that_git_merges_by_union_stands_twice() -> None:
    """A merge keeps the lines of both sides: one that both sides have changed may remain in its old form."""
    attributes = (ROOT / ".gitattributes").read_text(encoding="utf-8")
    pages = re.findall(r"^(\S+) merge=union$", attributes, re.MULTILINE)
    assert "docs/reports/track-record.md" in pages
    twice = []
    for page in pages:
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        begins = Counter(line[:MERGED_BEGIN] for line in lines if len(line) >= MERGED_BEGIN)
        twice += [f"{page}: {begin}…" for begin, count in begins.items() if count > 1]
    assert twice == []
