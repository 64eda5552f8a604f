"""For all tests: uvloop is the event loop, Hypothesis draws the same each time, trials and durations are
kept, and daemons are forked from a process that has their imports done."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from pytest_timeout import Settings

from tests.support import client_times, collecting
from tests.support import trials as trials_run
from tests.support.bytecode import import_share
from tests.support.durations import ProcessorClock, Recorder, recorded
from tests.support.event_loop import EventLoop
from tests.support.fake_loop import FakeLoop, fake_time
from tests.support.fork_server import popen
from tests.support.hang_guard import HangGuard, description
from tests.support.tracing import Tracing, is_traced
from tests.support.trials import pytest_terminal_summary, trials
from trovemq.testing import DaemonProcess
from trovemq_proto.channels import TRANSPORTS, GrpcTransport
from trovemq_store.files.kernel_sync import KernelSync

if TYPE_CHECKING:
    from _typeshed import HasFileno

__all__ = ["pytest_terminal_summary", "trials"]

SUITES = "tests/integration/test_conformance.py"
_DURATIONS = Recorder()
_HANG_GUARD = HangGuard()
_PROCESSOR_CLOCK = ProcessorClock()
_TRACING = Tracing()

# `make soak` draws more, `make quick` fewer.
_EXAMPLES = 100 if trials_run.SOAK else 10 if os.environ.get("QUICK") == "1" else 40
settings.register_profile(
    "tests",
    derandomize=True,
    deadline=None,
    max_examples=_EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(  # where it is enough that a test fails: no search for a smaller example
    "first-failure", settings.get_profile("tests"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("tests")

DaemonProcess._popen = staticmethod(popen)
client_times.lengthen()


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> GrpcTransport:
    """Each implementation of gRPC in turn."""
    name: GrpcTransport = request.param
    return name


@pytest.fixture
def kernel_sync(monkeypatch: pytest.MonkeyPatch) -> Generator[KernelSync]:
    """The real disk, synced by the kernel."""
    monkeypatch.setattr(KernelSync, "open", _open_kernel_sync)
    found = KernelSync.open()
    if found is None:
        pytest.skip("the kernel offers no syncs of files here")
    yield found
    found.close()


@pytest.fixture
def small_timer_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's has 38 MB, which each clean stop would write."""
    monkeypatch.setattr("trovemq_broker.timers.rocketmq_files.WHEEL_SLOTS", 600)


def _not_synced(fd: int | HasFileno) -> None:
    """In place of a sync: no test cuts the power of the real disk. Fake disks show which data is synced, and
    daemons sync theirs. As for a sync, the file has to be open."""
    os.fstat(fd if isinstance(fd, int) else fd.fileno())


os.fsync = os.fdatasync = _not_synced
_open_kernel_sync = KernelSync.open
KernelSync.open = lambda: None  # type: ignore[method-assign]

# A shell starts what runs in the background with Ctrl-C ignored, and so would be all that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)

# `TROVEMQ_GRPC_TRANSPORT=grpcio make test` starts all daemons with that transport.
if _TRANSPORT := os.environ.get("TROVEMQ_GRPC_TRANSPORT"):
    for _daemon in ("BROKER", "NAMESERVER"):
        os.environ[f"TROVEMQ_{_daemon}_GRPC_TRANSPORT"] = _TRANSPORT

# How full the machine's own disk is decides nothing: a run failed where 92 % of it was used.
for _setting in ("DISK_WARNING_PERCENT", "DISK_FORCIBLE_PERCENT", "DISK_USED_PERCENT_MAX"):
    os.environ[f"TROVEMQ_BROKER_{_setting}"] = "100"

# Nor does the hour of the day: brokers on stores with old messages removed them between 4 and 5 o'clock.
os.environ["TROVEMQ_BROKER_DELETE_WHEN"] = str((time.localtime().tm_hour + 12) % 24)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """pytest-asyncio's hook: async tests run on uvloop, as the daemons do; those with `fake_time`, each on a
    loop of made-up time."""
    marker = item.get_closest_marker("asyncio")
    is_fake = marker is not None and marker.kwargs == fake_time.kwargs
    return {"fake": FakeLoop} if is_fake else {"uvloop": EventLoop}


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    collecting.begin()
    import_share(session.config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return collecting.is_left_out(collection_path, config) or None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    collecting.end()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    _TRACING.switch(on=is_traced(item))
    _PROCESSOR_CLOCK.lap()


def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool:
    _HANG_GUARD.begin(item, settings)
    return True


def pytest_timeout_cancel_timer() -> bool:
    _HANG_GUARD.done()
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport) -> None:
    """xdist's hook: a worker died in this test."""
    report.longrepr = "\n".join(filter(None, [str(report.longrepr), description(crashitem)]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append(_PROCESSOR_CLOCK.lap())
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    trials_run.TALLY.add(report)
    _DURATIONS.add(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.collect()
    gc.freeze()  # pytest collects garbage ten times more before it ends
    if not hasattr(session.config, "workerinput"):
        trials_run.fail_where_short(session)
        _DURATIONS.write(whole=trials_run.WHOLE)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of the pipeline first: one worker has them all, and with them the one JVM. Then the files that
    took longest in the recorded run: the rest for the end, when workers take tests from each other, is short.
    The official clients' suites wait for more than a minute: the second worker's first ones. `make
    test-random` leaves the order of all others to chance."""
    seconds = {} if config.pluginmanager.hasplugin("randomly") else recorded()

    def rank(item: pytest.Item) -> tuple[bool, float]:
        return not path_of(item).startswith("tests/pipeline/"), -seconds.get(path_of(item), 0.0)

    items.sort(key=rank)
    suites = [item for item in items if path_of(item) == SUITES]
    second = len(items) // int(getattr(config, "workerinput", {}).get("workercount", 1)) % max(len(items), 1)
    others = [item for item in items if path_of(item) != SUITES]
    items[:] = [*others[:second], *suites, *others[second:]]


def path_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
