"""The distributions as a user installs them: wheels in fresh environments with their declared dependencies
only.

No network: the third-party distributions that a wheel declares, and those that these declare, are linked from
this environment. Undeclared packages are not there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import venv
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import dist
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = {
    "trovemq-proto": "proto",
    "trovemq-store": "store",
    "trovemq-rpc": "rpc",
    "trovemq-daemon": "daemon",
    "trovemq-nameserver": "nameserver",
    "trovemq-broker": "broker",
    "trovemq": "clients/python",
    "trovemq-console": "console",
    "trovemq-spark": "pipeline",
}
PACKAGES = tuple(PROJECTS.values())
NAMESERVER = ("trovemq-proto", "trovemq-rpc", "trovemq-daemon", "trovemq-nameserver", "trovemq")
DAEMONS = (*NAMESERVER, "trovemq-store", "trovemq-broker")

CLIENT_BYTES_MAX = 16_000_000
"""pygments (of rich) is 5 MB of it, PyYAML 3, protobuf 2. It may only shrink."""

TRANSPORT_IMPORTS = """
import importlib, pkgutil, trovemq_rpc

for module in pkgutil.walk_packages(trovemq_rpc.__path__, "trovemq_rpc."):
    importlib.import_module(module.name)
"""

CLIENT_WORK = """
import asyncio, importlib.util, sys, trovemq
from trovemq import errors, sync

for extra in ("numpy", "grpc", "cryptography"):
    assert importlib.util.find_spec(extra) is None, extra

async def main(address):
    async with trovemq.connect(address) as client:
        await client.admin.create_topic("orders", queue_count=1)
        one = await client.send("orders", b"one", keys=["k1"], tag="paid")
        bodies = [b"body %d" % i for i in range(50)]
        async with client.producer("orders") as producer:
            many = await producer.send_batch(bodies, keys=[f"b{i}" for i in range(50)])
        assert [receipt.queue_offset for receipt in many] == list(range(1, 51))
        pulled = [message.body async for message in client.pull("orders", queue_id=0, offset=0)]
        assert pulled == [b"one", *bodies], pulled
        (message,) = (await client.query("orders", "b7")).messages
        assert (await client.get(message.offset_msg_id)).messages[0].body == b"body 7"
        found = await client.search("orders", trovemq.Where.tag("paid"))
        assert [message.body for message in found.messages] == [b"one"], found
        async with client.subscribe("orders", group="billing", start="earliest") as messages:
            async for message in messages:
                await message.ack()
                if message.body == bodies[-1]:
                    break
        track = await client.track(one.unique_key)
        assert track is not None
        batch = await anext(client.pull_batches("orders", queue_id=0, offset=0))
        for column in ("offsets", "records"):
            try:
                getattr(batch, column)
            except ImportError as error:
                assert "pip install 'trovemq[numpy]'" in str(error), error
            else:
                raise AssertionError(column)

asyncio.run(main(sys.argv[1]))
with sync.connect(sys.argv[1]) as client:
    assert client.send("orders", b"two").queue_offset == 51
try:
    sync.connect(sys.argv[1], options=trovemq.ClientOptions(grpc_transport="grpcio"))
except trovemq.TroveError as error:
    assert "pip install 'trovemq[grpcio]'" in str(error), error
"""

OWN_TEST = """
def test_a_message_is_sent(trovemq_client):
    trovemq_client.admin.create_topic("orders", queue_count=1)
    assert trovemq_client.send("orders", b"one").queue_offset == 0
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each of our distributions, by name, as `make dist` builds them."""
    directory = tmp_path_factory.mktemp("wheels") / "dist"
    dist.build(directory, PACKAGES)
    return {re.sub(r"_", "-", wheel.name.split("-")[0]): wheel for wheel in directory.glob("*.whl")}


def declared(distributions: list[tuple[Distribution, str]]) -> Iterator[Distribution]:
    """All third-party distributions that these, each with an extra or "", declare, and these in turn; also
    those of the extras that our own ask of each other."""
    own = {one.name: one for one, _ in distributions}
    seen: set[str] = set()
    seen_extras: defaultdict[str, set[str]] = defaultdict(set)
    while distributions:
        one, extra = distributions.pop()
        for text in one.requires or ():
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            if requirement.name in PROJECTS:
                for wanted in requirement.extras - seen_extras[requirement.name]:
                    seen_extras[requirement.name].add(wanted)
                    distributions.append((own[requirement.name], wanted))
                continue
            if requirement.name in seen:
                continue
            seen.add(requirement.name)
            found = distribution(requirement.name)
            assert requirement.specifier.contains(found.version, prereleases=True), text
            yield found
            distributions.append((found, next(iter(requirement.extras), "")))


def environment(directory: Path, wheels: list[Path], extra: str = "") -> Path:
    """A fresh environment with these wheels and their dependencies; returns its folder of commands."""
    venv.create(directory, with_pip=False)
    (packages,) = directory.glob("lib/python*/site-packages")
    install = ["-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--python"]
    python = str(directory / "bin/python")
    names = [wheel.name.split("-")[0] for wheel in wheels]
    found = ["--no-index", "--find-links", str(wheels[0].parent)]
    subprocess.run(
        [sys.executable, *install, python, *found, *names], check=True, capture_output=True, timeout=120
    )
    ours = [Distribution.at(path) for path in packages.glob("trovemq*.dist-info")]
    assert len(ours) == len(wheels)
    for third_party in declared([(one, extra) for one in ours]):
        for top in {Path(str(file)).parts[0] for file in third_party.files or ()} - {"..", "__pycache__"}:
            link, target = packages / top, Path(str(third_party.locate_file(top)))
            if not link.exists():
                link.symlink_to(target)
    return directory / "bin"


def run(
    command: list[str | Path], timeout_s: float = 60, *, place: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=plain_environment(place),
        cwd=place or "/",
        check=False,
    )


def plain_environment(place: Path | None) -> dict[str, str]:
    """Variables for the commands. place: a directory whose modules come before those that are installed."""
    plain = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return plain if place is None else {**plain, "PYTHONPATH": str(place)}


def top_level_names(packages: Path) -> set[str]:
    """The top-level names that our wheels add for `import`."""
    files = [
        file for path in packages.glob("trovemq*.dist-info") for file in Distribution.at(path).files or ()
    ]
    return {file.parts[0] for file in files if file.suffix == ".py"}


def installed_bytes(packages: Path) -> int:
    """Of all files, without bytecode."""
    return sum(
        os.stat(os.path.join(folder, file)).st_size
        for folder, _, files in os.walk(packages, followlinks=True)
        for file in files
        if not file.endswith(".pyc")
    )


def test_the_client_alone_is_sdk_and_command_line(wheels: dict[str, Path], tmp_path: Path) -> None:
    ours = [wheels[name] for name in ("trovemq-rpc", "trovemq-proto", "trovemq")]
    commands = environment(tmp_path / "client", ours)
    (packages,) = (tmp_path / "client").glob("lib/python*/site-packages")
    assert top_level_names(packages) == {"trovemq", "trovemq_proto", "trovemq_rpc"}
    assert "TroveMQ" in run([commands / "trovemq", "--help"]).stdout
    explained = run([commands / "trovemq", "--json", "errors", "TOPIC_NOT_FOUND"])
    assert "TOPIC_NOT_FOUND" in explained.stdout
    assert installed_bytes(packages) < CLIENT_BYTES_MAX
    imported = run([commands / "python", "-c", "import trovemq, sys; print('trovemq_broker' in sys.modules)"])
    assert (imported.stdout, imported.stderr) == ("False\n", "")
    refused = run([commands / "trovemq", "server", "--store", "nowhere"])
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "trovemq server needs the daemons: pip install 'trovemq[server]'\n"
    refused = run([commands / "trovemq", "store", "verify", "--store", "nowhere"])
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "trovemq store verify needs the broker's tools: pip install 'trovemq[server]'\n"
    with BrokerProcess() as broker:
        worked = run([commands / "python", "-c", CLIENT_WORK, broker.address])
        assert (worked.returncode, worked.stderr) == (0, "")
        at = ["--json", "--server", broker.address]
        assert json.loads(run([commands / "trovemq", "query", "orders", "b7", *at]).stdout)["keys"] == "b7"
        consumed = run([commands / "trovemq", "tail", "orders", "-n", "2", "--no-follow", *at])
        assert (consumed.returncode, consumed.stderr) == (0, "")


def test_stubs_of_ones_own_can_be_generated_from_the_wheel(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["trovemq-proto"]) as wheel:
        packed = {name for name in wheel.namelist() if name.endswith(".proto")}
    folder = ROOT / "proto"
    assert packed == {str(path.relative_to(folder)) for path in folder.rglob("*.proto")}
    assert len(packed) > 10


def test_the_transport_stands_alone_and_is_typed(wheels: dict[str, Path], tmp_path: Path) -> None:
    commands = environment(tmp_path / "rpc", [wheels["trovemq-rpc"]])
    (packages,) = (tmp_path / "rpc").glob("lib/python*/site-packages")
    assert top_level_names(packages) == {"trovemq_rpc"}
    assert (packages / "trovemq_rpc" / "py.typed").is_file()
    (only,) = Distribution.discover(path=[str(packages)])
    assert all("extra ==" in requirement for requirement in only.requires or ())
    done = run([commands / "python", "-c", TRANSPORT_IMPORTS])
    assert (done.returncode, done.stderr) == (0, "")


def test_the_console_is_installed_with_its_pages(wheels: dict[str, Path], tmp_path: Path) -> None:
    ours = [wheels[name] for name in ("trovemq-rpc", "trovemq-proto", "trovemq", "trovemq-console")]
    commands = environment(tmp_path / "console", ours, "console")
    assert "Usage: trovemq console" in run([commands / "trovemq", "console", "--help"]).stdout
    shown = "from trovemq_console.rendering import make_environment as e; e().get_template('overview.html')"
    done = run([commands / "python", "-c", f"import trovemq_console.app; {shown}"])
    assert (done.returncode, done.stderr) == (0, "")


@contextmanager
def serving(command: list[str | Path], event: str, place: Path | None = None) -> Iterator[str]:
    """The daemon's address, once its log has the event; it stops cleanly at the end."""
    environment = plain_environment(place)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=place or "/", env=environment)
    try:
        yield listening(process, event)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def listening(process: subprocess.Popen[str], event: str) -> str:
    """The address in the line of the log that has the event."""
    assert process.stderr is not None
    before = []
    for line in process.stderr:
        if f'"{event}"' in line:
            return str(json.loads(line)["listen"])
        before.append(line)
    raise AssertionError(f"ended with {process.wait(10)}: {''.join(before)}")


def use_the_daemons(commands: Path, store: Path, place: Path | None = None) -> None:
    """Starts a nameserver and a broker by `trovemq`, sends a message, gets it, and verifies the store
    after."""
    trovemq = commands / "trovemq"
    options = ["--listen", "127.0.0.1:0", "--http", "off", "--log-format", "json"]
    for verb in ("server", "nameserver"):
        assert f"Usage: trovemq {verb}" in run([trovemq, verb, "--help"], place=place).stdout
        assert run([trovemq, verb, "--no-such-option"], place=place).returncode == 2
    with serving([trovemq, "nameserver", *options], "nameserver.started", place) as nameserver:
        command: list[str | Path] = [
            trovemq,
            "server",
            "--store",
            store,
            "--nameserver",
            nameserver,
            *options,
        ]
        with serving(command, "broker.started", place) as broker:
            at = ["--server", broker]
            assert run([trovemq, "topic", "create", "orders", *at], place=place).returncode == 0
            sent = run([trovemq, "send", "orders", "hello", "--key", "k1", "--json", *at], place=place)
            name = json.loads(sent.stdout)["offsetMsgId"]
            found = run([trovemq, "get", name, "--json", *at], place=place)
            assert json.loads(found.stdout)["keys"] == "k1"
    verified = run([trovemq, "store", "verify", "--json", "--store", store], place=place)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["findings"] == 0


def test_the_daemons_are_started_by_the_command_line(wheels: dict[str, Path], tmp_path: Path) -> None:
    commands = environment(tmp_path / "server", [wheels[name] for name in DAEMONS], "server")
    (packages,) = (tmp_path / "server").glob("lib/python*/site-packages")
    ours = {
        "trovemq",
        *(f"trovemq_{name}" for name in ("broker", "daemon", "nameserver", "proto", "rpc", "store")),
    }
    assert top_level_names(packages) == ours
    use_the_daemons(commands, tmp_path / "store")
    for script in ("broker", "nameserver"):
        assert "Usage: trovemq " in run([commands / f"trovemq-{script}", "--help"]).stdout


def test_a_nameserver_needs_no_broker(wheels: dict[str, Path], tmp_path: Path) -> None:
    commands = environment(tmp_path / "nameserver", [wheels[name] for name in NAMESERVER])
    options = ["--listen", "127.0.0.1:0", "--http", "off", "--log-format", "json"]
    with serving([commands / "trovemq", "nameserver", *options], "nameserver.started") as address:
        assert run([commands / "trovemq", "cluster", "--server", address]).returncode == 0


def test_a_users_own_broker_py_kept_the_server_from_starting(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Programs that use taskiq often have one. The fixture's broker did not start either."""
    commands = environment(tmp_path / "server", [wheels[name] for name in DAEMONS], "testing")
    own = tmp_path / "own"
    own.mkdir()
    for name in ("broker", "nameserver"):
        (own / f"{name}.py").write_text("raise SystemExit('not yours')\n")
    (own / "test_own.py").write_text(OWN_TEST)
    use_the_daemons(commands, tmp_path / "store", own)
    tested = run([commands / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"], 240, place=own)
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout + tested.stderr
