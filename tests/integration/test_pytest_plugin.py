"""The fixtures that users' tests get, and the broker with faults."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import trovemq
from trovemq import Faults, sync, testing
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.asyncio
@pytest.mark.parametrize("turn", range(2))
async def test_each_test_has_a_broker_without_topics_and_groups(
    trovemq_broker: BrokerProcess, turn: int
) -> None:
    async with trovemq.connect(trovemq_broker.address) as client:
        assert await client.admin.list_topics() == []
        assert await client.admin.groups.list_all() == []
        await client.admin.create_topic("orders", queue_count=1)
        await client.send("orders", b"%d" % turn)
        async with client.subscribe("orders", "billing", start="earliest") as messages:
            message = await anext(messages)
            assert message.body == b"%d" % turn
            await message.dead_letter()


def test_a_client_for_threads(trovemq_client: sync.Client) -> None:
    assert all(topic.system for topic in trovemq_client.admin.list_topics(include_system=True))
    trovemq_client.admin.create_topic("orders", queue_count=1)
    assert trovemq_client.send("orders", b"1").queue_offset == 0


@pytest.mark.asyncio
async def test_the_first_route_of_a_brokers_nameserver_lacked_the_broker() -> None:
    """As the docstring has it. The registration is kept back, so that it is late each time."""
    with testing.NameserverProcess() as nameserver:
        nameserver.send_signal(signal.SIGSTOP)
        late = threading.Timer(1.5, nameserver.send_signal, (signal.SIGCONT,))
        late.start()
        with BrokerProcess(nameservers=[nameserver, "127.0.0.1:9"]):
            assert late.finished.is_set(), "nobody can have listed the broker yet"
            async with trovemq.connect(nameserver.address) as client:
                assert await client.admin.create_topic("orders", queue_count=1)
    other = BrokerProcess(nameservers=[nameserver])
    assert not other._unlisted(), "the nameserver does not run"
    other.close()


@pytest.mark.asyncio
async def test_a_test_may_kill_the_broker(trovemq_broker: BrokerProcess) -> None:
    trovemq_broker.kill()


def test_the_next_one_has_a_broker_again(trovemq_client: sync.Client) -> None:
    assert trovemq_client.admin.list_topics() == []


def test_async_tests_of_the_first_pages_did_not_run_in_a_new_project(tmp_path: Path) -> None:
    """The tests of README and how-to, as a reader copies them, with the settings that the pages name."""
    settings = re.search(r'`(asyncio_mode = "\w+")`', (ROOT / "docs/how-to/test-your-code.md").read_text())
    assert settings is not None
    (tmp_path / "pytest.ini").write_text("[pytest]\n" + settings[1].replace('"', "") + "\n")
    tests = 0
    for page in ("README.md", "docs/how-to/test-your-code.md"):
        blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
        (block,) = (one for one in blocks if "def test_" in one)
        tests += block.count("def test_")
        name = f"test_{page.rpartition('/')[2].partition('.')[0].replace('-', '_')}.py"
        (tmp_path / name).write_text(f"import pytest\nimport trovemq\n{block}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, f"{tests} passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.asyncio
async def test_a_client_of_the_url_meets_the_faults() -> None:
    with testing.broker(faults=Faults(duplicates=1.0)) as broker:
        async with trovemq.connect(broker.url) as client:
            await client.admin.create_topic("orders", queue_count=1)
            await client.send("orders", b"twice", message_id="one")
        async with trovemq.connect(broker.address) as client:
            (queue,) = await client.queue_offsets("orders")
            assert queue.max_offset == 2
