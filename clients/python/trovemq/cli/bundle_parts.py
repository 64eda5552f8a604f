"""The parts of a support bundle. Each is collected separately; one that fails is replaced by its error.

| member of the archive | content |
| --- | --- |
| `bundle.json` | when and by which version it was made; its parts, with their errors |
| `versions.json` | Python, the system, and the distributions that TroveMQ uses |
| `cluster.jsonl`, `statistics.jsonl` | brokers and their topics; their counters |
| `conditions.jsonl` | each broker's process: interpreter, readiness, disk, open files |
| `configuration.jsonl` | the cluster's configuration on each broker (`cluster config`) |
| `topics.jsonl`, `groups.jsonl`, `lag.jsonl` | their settings; the lag of each group |
| `settings.jsonl` | the settings of each broker that runs (`config list`) |
| `http-N/` | `/readyz`, `/healthz` and `/metrics` of the N-th daemon |
| `settings-N.toml` | the settings that a broker has with the N-th file, by `--print-config` |
| `log-N.txt` | the end of the N-th log file |

No part reads messages. Texts go through `redacted`, although logs, metrics and settings have no secrets
anyway.
"""

from __future__ import annotations

import asyncio
import io
import json
import platform
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from trovemq.cli.options import Format
from trovemq.cli.output import Output
from trovemq.cli.session import Session
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.interpreter import interpreter_text

LOG_BYTES_MAX: Final = 4 << 20
"""The most bytes that are collected of the end of each log file."""
PAGE_BYTES_MAX: Final = 64 << 20
SECONDS_MAX: Final = 20.0
PAGES: Final = ("readyz", "healthz", "metrics")
DISTRIBUTIONS: Final = ("cryptography", "grpcio", "lmdb", "msgspec", "numpy", "protobuf", "uvloop", "zlib-ng")
UNREACHABLE: Final = (errors.BROKER_UNREACHABLE, errors.REQUEST_TIMEOUT, errors.TLS_FAILED)

_SECRET: Final = re.compile(
    r"""(?ix) (?P<name> [\w-]* (?:secret|password|passwd|token|credential|authorization|private_key) [\w-]*)
        (?P<between> ["']? \s* [=:] \s* )
        (?P<value> ""\"(?s:.*?)""\" | '''(?s:.*?)''' | "(?:[^"\\]|\\.)*" | '[^']*'
        | (?:Basic|Bearer|Digest)\ +[^\s,;}]+ | [^\s,;}]+ )"""
)
_OF_URL: Final = re.compile(r"(://)[^\s/@\"']+@")


@dataclass(frozen=True, slots=True)
class Part:
    """A member of the archive. `error`: "" if there is none."""

    name: str
    content: bytes = b""
    error: str = ""


def redacted(text: str) -> str:
    """The text without values whose names say that they are secret, and without user names and passwords in
    URLs."""
    text = _OF_URL.sub(r"\1***@", text)
    return _SECRET.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    """Names of files stay: they are no secrets."""
    if found["name"].lower().endswith("_file"):
        return found[0]
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    return f"{found['name']}{found['between']}{quote}***{quote}"


async def parts_of(
    session: Session, http: Sequence[str], configs: Sequence[Path], logs: Sequence[Path]
) -> AsyncIterator[Part]:
    """Every part, in the order of the table."""
    yield Part("versions.json", _as_json(versions()))
    async for part in _answers(session):
        yield part
    for number, address in enumerate(http, 1):
        for page in PAGES:
            yield await asyncio.to_thread(_page, f"http-{number}/{page}", address, page)
    for number, config in enumerate(configs, 1):
        yield await asyncio.to_thread(_settings, f"settings-{number}.toml", config)
    for number, log in enumerate(logs, 1):
        yield await asyncio.to_thread(_end_of_log, f"log-{number}.txt", log)


def versions() -> dict[str, object]:
    """The versions on this machine, which need not be the broker's."""
    from importlib.metadata import distributions

    found = {one.metadata["Name"]: one.version for one in distributions()}
    names = sorted(name for name in found if name.startswith("trovemq") or name in DISTRIBUTIONS)
    shown = {name: found[name] for name in names}
    interpreter = {"python": sys.version, "interpreter": interpreter_text()}
    return {**interpreter, "system": platform.platform(), "distributions": shown}


# --- answers of the server --------------------------------------------------------------------------
async def _answers(session: Session) -> AsyncIterator[Part]:
    """The server's parts. When it cannot be reached, it is not asked for the rest, because each attempt takes
    the whole time limit."""
    from trovemq.cli import cluster_config, clusters, config, counters, group_lag, groups, topics

    verbs: dict[str, Callable[[Session], Coroutine[Any, Any, None]]] = {
        "cluster": clusters.cluster,
        "conditions": conditions,
        "statistics": lambda own: counters.stats(own, seconds=0.0),
        "configuration": cluster_config.config,
        "topics": topics.list_,
        "groups": groups.list_,
        "lag": lambda own: group_lag.lag(own, every_group=True),
        "settings": config.list_,
    }
    unreachable = ""
    for name, verb in verbs.items():
        if unreachable:
            yield Part(f"{name}.jsonl", error=f"not asked: {unreachable}")
            continue
        printed = io.BytesIO()
        output = Output(Format.JSON, stdout=printed, stderr=io.StringIO(), terminal=False)
        own = Session(replace(session.options, format=Format.JSON), session.timeout_s, output)
        try:
            await verb(own)
            output.finish()
            yield Part(f"{name}.jsonl", _clean(printed.getvalue()))
        except TroveError as error:
            if error.spec is errors.REQUEST_ILLEGAL:
                raise  # a mistake of the caller, such as a malformed address
            unreachable = error.symbol if error.spec in UNREACHABLE else ""
            yield Part(f"{name}.jsonl", error=str(error))
        except Exception as error:  # such as the answer of an older server; the other parts are still wanted
            yield Part(f"{name}.jsonl", error=f"{type(error).__name__}: {error}")
        finally:
            output.close()


async def conditions(session: Session) -> None:
    """Each broker's process: its interpreter, readiness, disk, open files."""
    async with session.client() as client:
        for route in (await session.call(client.admin.cluster())).brokers:
            condition = await session.call(client.admin.brokers.condition(route.broker.name))
            session.output.item(asdict(condition))


# --- the machine's own ------------------------------------------------------------------------------
def _page(name: str, address: str, page: str) -> Part:
    url = address if "://" in address else f"http://{address}"
    if not url.startswith(("http://", "https://")):
        return Part(name, error="neither HOST:PORT nor an HTTP URL")
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/{page}", timeout=SECONDS_MAX) as reply:  # noqa: S310
            return Part(name, _clean(reply.read(PAGE_BYTES_MAX)))
    except urllib.error.HTTPError as error:  # of a daemon that is not ready: its answer says why
        with error:
            return Part(name, _clean(error.read(PAGE_BYTES_MAX)), error=f"HTTP status {error.code}")
    except (OSError, ValueError) as error:
        return Part(name, error=redacted(str(error)))


def _settings(name: str, config: Path) -> Part:
    """The output of the daemon's own `--print-config`, which shows no secrets."""
    command = [sys.executable, "-m", "trovemq.cli", "server", "--config", str(config), "--print-config"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return Part(name, error=redacted(str(error)))
    if done.returncode != 0:
        return Part(name, error=redacted(done.stderr.decode("utf-8", "replace").strip()))
    return Part(name, _clean(done.stdout))


def _end_of_log(name: str, log: Path) -> Part:
    try:
        with log.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - LOG_BYTES_MAX))
            content = file.read(LOG_BYTES_MAX)
    except OSError as error:
        return Part(name, error=str(error))
    if size > LOG_BYTES_MAX:
        content = content.partition(b"\n")[2]  # begin with a whole line
    return Part(name, _clean(content))


def _clean(content: bytes) -> bytes:
    return redacted(content.decode("utf-8", "replace")).encode()


def _as_json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()
