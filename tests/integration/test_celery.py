"""Celery on a real broker: workers of prefork processes run tasks, are controlled, and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kombu
import pytest

import trovemq.celery
from tests.support import celery_shop as shop
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

WAIT_SECONDS = 240
ROOT = Path(__file__).resolve().parents[2]


class Shop:
    """Workers, and the lines that their tasks wrote."""

    def __init__(self, broker: BrokerProcess, directory: Path) -> None:
        self.broker = broker
        self.log = directory / "tasks"
        self.log.touch()
        self._output = (directory / "workers").open("ab")
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A worker of two processes, which is ready when it is returned."""
        command = [sys.executable, "-m", "celery", "-A", "tests.support.celery_shop", "worker", "-c", "2"]
        environment = {
            **os.environ,
            "SHOP_BROKER": f"trovemq://{self.broker.address}",
            "SHOP_LOG": str(self.log),
            "PYTHONWARNINGS": "default",
        }
        worker = subprocess.Popen(
            [*command, "-n", f"{name}@test", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.workers.append(worker)
        until(lambda: shop.app.control.ping([f"{name}@test"], timeout=1))
        return worker

    def lines(self, word: str) -> list[str]:
        return [line.partition(" ")[2] for line in self.log.read_text().splitlines() if line.startswith(word)]

    def go(self) -> None:
        """Lets the tasks that wait end."""
        self.log.with_suffix(".go").touch()

    def lag(self, queue: str) -> int:
        topic = trovemq.celery.topic_of(queue)
        return sum(one.lag for one in self.broker.client.admin.groups.lag("celery", topic))

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(WAIT_SECONDS)
        self._output.close()


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def daemon() -> Iterator[BrokerProcess]:
    with BrokerProcess(renewed_lease_ms=1_000, renewed_total_max_ms=2_000) as process:
        shop.app.conf.broker_url = f"trovemq://{process.address}"
        yield process
        shop.app.close()
        shop.app.pool.force_close_all()


@pytest.fixture
def running(daemon: BrokerProcess, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(daemon, tmp_path)
    yield made
    made.close()


def test_tasks_run_in_processes_and_answer(running: Shop) -> None:
    running.start("one", "-Q", "celery,mail.high")
    result = shop.add.delay(1, 2)
    shop.parent.delay()
    shop.flaky.delay()
    shop.mail.delay("ann@example.org")
    later = datetime.now(UTC) + timedelta(seconds=1)
    shop.add.apply_async((5, 5), eta=later)
    assert result.get(timeout=WAIT_SECONDS) == 3
    until(lambda: len(running.lines("flaky")) == 3 and "10" in running.lines("add"))
    assert datetime.now(UTC) >= later
    until(lambda: running.lines("mail") and running.lines("parent") and "42" in running.lines("add"))
    assert running.lines("flaky") == ["0", "1", "2"]
    assert int(running.lines("parent")[0]) != running.workers[0].pid, "a child process has published"
    (found,) = running.broker.client.query("celery", result.id).messages
    assert found.user_properties == {"task": "add"}
    until(lambda: running.lag("celery") == running.lag("mail.high") == 0)


def test_workers_are_controlled_and_no_topic_is_one_of_a_process(running: Shop) -> None:
    worker = running.start("two")
    inspect = shop.app.control.inspect(["two@test"], timeout=10)
    assert {queue["name"] for queue in inspect.active_queues()["two@test"]} == {"celery"}
    assert "add" in inspect.registered()["two@test"]
    admin = running.broker.client.admin
    topics = {one.topic for one in admin.list_topics() if not one.topic.startswith("%")}
    assert {"celery", "celery-control"} <= topics <= {"celery", "celery-control", "mail%2Ehigh"}
    assert {one.group for one in admin.groups.list_all()} == {"celery"}
    shop.app.control.shutdown(["two@test"])
    assert worker.wait(WAIT_SECONDS) == 0


def test_a_killed_worker_loses_nothing(running: Shop) -> None:
    worker = running.start("three")
    for number in range(6):
        shop.late.delay(number)
    until(lambda: len(running.lines("begin")) == 2)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait(WAIT_SECONDS)
    assert running.lines("end") == []
    running.go()
    running.start("four")
    until(lambda: set(running.lines("end")) == set("012345"))
    assert len(running.lines("begin")) == 8, "the two that ran were delivered again, and the others once"
    until(lambda: running.lag("celery") == 0)


def test_a_task_that_is_acknowledged_early_does_not_run_again(running: Shop) -> None:
    worker = running.start("five")
    shop.early.delay(7)
    until(lambda: running.lines("begin"))
    until(lambda: running.lag("celery") == 0)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait(WAIT_SECONDS)
    running.start("six")
    assert shop.add.delay(1, 1).get(timeout=WAIT_SECONDS) == 2
    assert running.lines("begin") == ["7"]


def test_a_lease_is_renewed_beyond_the_time_of_the_broker(running: Shop) -> None:
    """The broker renews for two seconds here, in place of three hours. The first worker has no space for
    another message, so the second one would get the task."""
    running.start("seven", "-c", "1")
    for number in (1, 2, 3):
        shop.late.delay(number)
    until(lambda: running.lines("begin"))
    running.start("eight", "-c", "4")
    until(lambda: set(running.lines("begin")) == {"1", "2", "3"})  # those that waited ahead are delivered
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 4)
    running.go()
    until(lambda: running.lag("celery") == 0)
    assert running.lines("begin").count("1") == 1


def test_a_task_of_a_higher_priority_runs_before(running: Shop) -> None:
    for priority in (0, 9, 5):
        shop.mail.apply_async((f"p{priority}",), priority=priority)
    running.start("nine", "-Q", "mail.high", "-P", "solo")
    until(lambda: len(running.lines("mail")) == 3)
    assert running.lines("mail") == ["p9", "p5", "p0"]


def test_a_task_that_cannot_be_sent_says_why(running: Shop) -> None:
    with pytest.raises(kombu.exceptions.EncodeError):
        shop.mail.delay(object())
    with pytest.raises(trovemq.TroveError, match=r"TOPIC_ILLEGAL .* a shorter name"):
        shop.mail.apply_async(("ann",), queue="q" * 200)
    assert running.lines("mail") == []


def test_without_the_import_kombu_says_that_it_does_not_know_the_scheme() -> None:
    script = "import kombu; kombu.Connection('trovemq://127.0.0.1:1').connect()"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "No such transport: trovemq" in ran.stderr
    named = script.replace("1:1'", "1:1', transport='trovemq.celery:Transport'")
    ran = subprocess.run([sys.executable, "-c", named], capture_output=True, text=True, check=False)
    assert "BROKER_UNREACHABLE" in ran.stderr
