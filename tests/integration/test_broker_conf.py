"""A RocketMQ broker.conf as it is: each setting under its own name has its effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, Stubs, refused, running_broker
from trovemq_proto.v1 import common_pb2, message_pb2, query_pb2

pytestmark = pytest.mark.slow

CONF = """
# as RocketMQ has it
brokerName = conf-broker
brokerClusterName = ConfCluster
mappedFileSizeCommitLog=131072
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=97
maxIndexNum=50
maxMsgsNumBatch=5
flushDiskType=ASYNC_FLUSH
autoCreateTopicEnable=true
messageIndexEnable=true
messageIndexSafe=true
"""


def started(store: Path, conf: Path, *arguments: str) -> BrokerProcess:
    """Its settings come from the file alone (--set of the test's own would win over it)."""
    return BrokerProcess(store, arguments=["--config", str(conf), *arguments], small_files=False)


def sizes(directory: Path) -> set[int]:
    return {path.stat().st_size for path in directory.rglob("*") if path.is_file()}


@pytest.mark.asyncio
async def test_each_setting_works_under_rocketmqs_name(tmp_path: Path) -> None:
    conf, store = tmp_path / "broker.conf", tmp_path / "store"
    conf.write_text(CONF)
    broker = started(store, conf)
    try:
        async with Stubs(broker.address) as stubs:
            for number in range(40):
                message = message_pb2.OutgoingMessage(body=bytes(2_500), keys=["k"])
                request = message_pb2.SendRequest(topic="fresh", queue_id=0, messages=[message])
                reply = await stubs.messages.Send(request)
                assert (reply.durability, reply.first_queue_offset) == (common_pb2.MEMORY, number)
            assert reply.broker == "conf-broker"
            query = query_pb2.QueryByKeyRequest(topic="fresh", key="k")
            pages = [page async for page in stubs.queries.QueryByKey(query)]
            records = b"".join(page.records for page in pages)
            assert records.count(b"UNIQ_KEY\x01") == 5
            assert pages[-1].cursor
            assert not pages[-1].complete
        assert sizes(store / "commitlog") == {131_072}
        assert sizes(store / "consumequeue") == {2_000}
        assert broker.stop() == 0
        assert sizes(store / "index") == {40 + 4 * 97 + 20 * 50}
        assert len(list((store / "index").iterdir())) == 2, "80 keys, and a file takes 49"
    finally:
        broker.end()


@pytest.mark.asyncio
async def test_the_defaults_of_the_same_settings(tmp_path: Path) -> None:
    """Topics are not made by sending, and an acknowledgement waits for the disk."""
    with running_broker(tmp_path) as broker:
        async with Stubs(broker.address) as stubs:
            request = message_pb2.SendRequest(topic="fresh", messages=[{"body": b"x"}])
            assert (await refused(stubs.messages.Send(request))).symbol == "TOPIC_NOT_FOUND"
        assert broker.stop() == 0


def test_a_conf_that_is_wrong_is_a_usage_error(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF + "\nmaxMsgNumBatch=3\n")
    broker = started(tmp_path / "store", conf)
    assert broker.wait() == 2
    assert "maxMsgsNumBatch" in str(broker.lines), "the name that was probably meant"
