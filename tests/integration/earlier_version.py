"""The version before this one: its client and its daemons out of the history, and a store that it wrote.

There is no release yet, so it is COMMIT, the last one before this version's work whose soak is recorded
(docs/reports/soak.md). After a release it is that release's tag, and the store is made again:

    python -m tests.integration.earlier_version

writes tests/data/earlier-store.tar.gz, with its contents as `contents.json` beside the store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from trovemq.testing import BrokerProcess

ROOT: Final = Path(__file__).resolve().parents[2]
COMMIT: Final = "a499231b5ef7a956e52e688aab657f6e2e679554"
ARCHIVE: Final = ROOT / "tests" / "data" / "earlier-store.tar.gz"
FOLDERS: Final = ("proto", "store", "rpc", "daemon", "nameserver", "broker", "clients/python")

WRITE = """
import asyncio, json, sys, trovemq

async def main(address):
    async with trovemq.connect(address) as client:
        admin = client.admin
        await admin.create_topic("orders", queue_count=2)
        await admin.create_topic("reminders", queue_count=1, message_type="MIXED")
        await admin.groups.create("billing", trovemq.GroupSettings(retry_max=1, backoff_ms=(10,)))
        ids = {}
        for number in range(60):
            key = f"order-{number}"
            tag = ("paid", "new")[number % 2]
            receipt = await client.send("orders", b"order %d" % number, keys=[key], tag=tag)
            ids[key] = receipt.offset_msg_id
        await client.send("reminders", b"later", keys=["later"], deliver_after=300 * 86_400)
        async with client.transaction() as transaction:
            for number in range(3):
                await transaction.send("orders", b"together", keys=[f"together-{number}"])
        acknowledged, dead = [], []
        async with client.subscribe("orders", group="billing", start="earliest") as messages:
            while len(acknowledged) < 20:
                message = await anext(messages)
                if len(dead) < 3:
                    await message.dead_letter()
                    dead += message.keys
                else:
                    await message.ack()
                    acknowledged += message.keys
        contents = {"ids": ids, "acknowledged": acknowledged, "dead": dead}
        print(json.dumps({"version": trovemq.__file__, **contents}))

asyncio.run(main(sys.argv[1]))
"""


class EarlierBroker(BrokerProcess):
    """A broker of the earlier version. Not forked from a process of this one."""

    _popen = subprocess.Popen


def check_out(folder: Path) -> dict[str, str]:
    """Writes the earlier version's packages below the folder. Returns the variables with which a Python
    imports them. Raises CalledProcessError if the repository lacks the commit, as a shallow clone does."""
    command = ["git", "-C", str(ROOT), "archive", COMMIT, *FOLDERS]
    archive = subprocess.run(command, check=True, capture_output=True, timeout=120).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as sources:
        sources.extractall(folder, filter="data")
    return {"PYTHONPATH": os.pathsep.join(str(folder / name) for name in FOLDERS)}


def run_earlier(script: str, address: str, environment: dict[str, str]) -> str:
    """The output of a program of the earlier client."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, address],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> None:
    """Writes the archive."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = check_out(Path(scratch) / "earlier")
        store = Path(scratch) / "store"
        with EarlierBroker(store=store, environment=environment, ready_timeout=240) as broker:
            contents: dict[str, Any] = json.loads(run_earlier(WRITE, broker.address, environment))
            broker.stop()
        assert str(Path(scratch) / "earlier") in contents.pop("version")
        (Path(scratch) / "contents.json").write_text(json.dumps(contents), encoding="utf-8")
        with tarfile.open(ARCHIVE, "w:gz") as archive:
            for name in ("contents.json", "store"):
                archive.add(Path(scratch) / name, name)
    print(ARCHIVE, ARCHIVE.stat().st_size)


if __name__ == "__main__":
    main()
