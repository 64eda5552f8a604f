"""Prometheus and promtool: the machine's own, or those of Debian's package, unpacked below build/.

`programs()` names them, or skips the test where there are none to be had. `running()` starts a server on a
free loopback port, and `ask()` queries it.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trovemq.testing import free_port

PLACE = Path(__file__).resolve().parents[2] / "build" / "prometheus"
DOWNLOAD_SECONDS_MAX = 60
START_SECONDS_MAX = 240


@dataclass(frozen=True)
class Programs:
    prometheus: str
    promtool: str


def programs() -> Programs:
    """Skips the test, with the reason, where there are none."""
    found = _programs()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@cache
def _programs() -> Programs | str:
    installed = [shutil.which(name) for name in ("prometheus", "promtool")]
    if all(installed):
        return Programs(*(str(path) for path in installed))
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:  # workers of one run come together
        fcntl.flock(lock, fcntl.LOCK_EX)
        unpacked = PLACE / "usr" / "bin"
        reason = PLACE / "reason"
        if not (unpacked / "promtool").exists() and not _is_new(reason):
            reason.write_text(_unpack(), encoding="utf-8")
        if (unpacked / "promtool").exists():
            return Programs(str(unpacked / "prometheus"), str(unpacked / "promtool"))
        return f"no Prometheus: {reason.read_text(encoding='utf-8')}"


def _is_new(path: Path) -> bool:
    """One attempt an hour is enough."""
    return path.exists() and time.time() - path.stat().st_mtime < 3_600


def _unpack() -> str:
    """Debian's package, by apt's own verification; why not, or an empty text."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "neither installed nor is there apt"
    try:
        for command in (["apt-get", "-q", "download", "prometheus"], ["dpkg-deb", "-x", "{package}", "."]):
            package = next((str(path) for path in PLACE.glob("prometheus_*.deb")), "")
            words = [word.replace("{package}", package) for word in command]
            subprocess.run(words, cwd=PLACE, check=True, capture_output=True, timeout=DOWNLOAD_SECONDS_MAX)
    except subprocess.CalledProcessError as error:
        return f"{error.cmd[0]} says: {error.stderr.decode(errors='replace').strip()[-300:]}"
    except subprocess.TimeoutExpired as error:
        return f"{error.cmd[0]} took longer than {DOWNLOAD_SECONDS_MAX} s"
    finally:
        for package_path in PLACE.glob("prometheus_*.deb"):
            package_path.unlink()
    return ""


class Prometheus:
    """A server that answers."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **fields: str) -> Any:
        """The data of an answer. AssertionError with Prometheus' own words for an error."""
        query = urllib.parse.urlencode(fields)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{fields}: {error.read().decode()}") from error

    def wait_for(self, query: str) -> None:
        """Until it has samples."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.ask("query", query=query)["result"]:
            assert time.monotonic() < deadline, f"no samples of {query}: {self.ask('targets')}"
            time.sleep(0.05)

    def rules(self) -> list[dict[str, Any]]:
        """When each was evaluated."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
            if rules and all(rule["health"] != "unknown" for rule in rules):
                return rules
            assert time.monotonic() < deadline, "the rules were not evaluated"
            time.sleep(0.05)


@contextmanager
def running(program: str, configuration: Path, directory: Path) -> Iterator[Prometheus]:
    """Ends it by its own process id."""
    port = free_port()
    command = [
        program,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        server = Prometheus(port)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _ready(server.url):
            assert process.poll() is None, (directory / "prometheus.log").read_text()
            assert time.monotonic() < deadline, "Prometheus did not become ready"
            time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False
