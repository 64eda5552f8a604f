"""A message that gRPC itself is to inflate (S3): refused by a real broker, within little memory and time."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from tests.durability.bombs import GIB, deflated_zeros
from tests.durability.process_memory import memory_kib, restart_peak
from tests.durability.raw_http2 import RawCall
from tests.support.broker_process import running_broker
from tests.support.rocketmq_client import SERVICE, RawClient, create_topics
from tests.support.trials import Trials
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.slow

GROWN_KIB_MAX = 16 << 10
TOOK_MS_MAX = 400.0
"""100 ms are meant; the machine may be slow, and busy."""
ZLIB, GZIP = 15, 31


def processor_ms(process: int) -> float:
    """User and system time of all threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1_000 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("encoding", "window"), [("gzip", GZIP), ("deflate", ZLIB)])
def test_a_request_of_1_mib_that_grpc_would_inflate_to_1_gib_is_refused(
    encoding: str, window: int, trials: Trials, tmp_path: Path
) -> None:
    bomb = deflated_zeros(GIB, window)
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        create_topics(broker.address, {"orders": "NORMAL"}, queue_count=1)
        assert client.send("orders", b"before").status.code == v2.OK
        process = broker.process.pid
        restart_peak(process)
        before, started = memory_kib("VmRSS", process), processor_ms(process)
        with closing(RawCall(broker.address, f"{SERVICE}SendMessage", encoding)) as call:
            call.send(bomb)
            assert call.data == b"", "no reply"
        assert memory_kib("VmHWM", process) - before <= GROWN_KIB_MAX
        assert processor_ms(process) - started <= TOOK_MS_MAX
        assert client.send("orders", b"after").status.code == v2.OK
        assert broker.stop() == 0
    trials.count("S3", "bombs")
