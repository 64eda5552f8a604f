"""A reply of etcd that cannot be right is refused before anything of it is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.coordination import etcd_replies
from trovemq_broker.coordination.coordinator import KeyValue, Lease
from trovemq_broker.coordination.etcd_coordinator import group_prefix
from trovemq_broker.coordination.etcd_replies import KEYS_MAX, VALUE_SIZE_MAX, Seen
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.etcd.v3 import etcd_pb2 as pb

PREFIX = "/trovemq/c/g/"


def value(key: bytes = b"/trovemq/c/g/state", **changes: Any) -> pb.KeyValue:
    fields = {"key": key, "value": b"{}", "create_revision": 3, "mod_revision": 7, **changes}
    return pb.KeyValue(**fields)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(TroveError) as caught:
        call()
    assert caught.value.spec is errors.COORDINATION_ILLEGAL
    return caught.value.message


def test_a_snapshot_has_the_groups_keys_without_their_prefix() -> None:
    found = pb.RangeResponse(kvs=[value(), value(b"/trovemq/c/g/nodes/a", lease=9)])
    snapshot = etcd_replies.snapshot_of(found, 7, PREFIX)
    assert snapshot.revision == 7
    assert snapshot.values["state"] == KeyValue("state", b"{}", 3, 7, 0)
    assert snapshot.values["nodes/a"].lease == 9


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (pb.RangeResponse(kvs=[value()], more=True), "more than 64 keys"),
        (pb.RangeResponse(kvs=[value()] * (KEYS_MAX + 1)), "more than 64 keys"),
        (pb.RangeResponse(kvs=[value(b"/other/state")]), "does not begin with"),
        (pb.RangeResponse(kvs=[value(PREFIX.encode() + b"k" * 257)]), "too long"),
        (pb.RangeResponse(kvs=[value(b"\xff\xfe")]), "is not text"),
        (pb.RangeResponse(kvs=[value(value=bytes(VALUE_SIZE_MAX + 1))]), "65537 bytes"),
        (pb.RangeResponse(kvs=[value(mod_revision=8)]), "revisions of"),
        (pb.RangeResponse(kvs=[value(create_revision=0)]), "revisions of"),
        (pb.RangeResponse(kvs=[value(create_revision=7, mod_revision=3)]), "revisions of"),
        (pb.RangeResponse(kvs=[value(lease=-1)]), "revisions of"),
    ],
)
def test_a_snapshot_beyond_its_bounds_is_refused(found: pb.RangeResponse, said: str) -> None:
    assert said in refused(lambda: etcd_replies.snapshot_of(found, 7, PREFIX))


def test_a_transaction_answers_for_each_of_its_operations() -> None:
    whole = pb.ResponseOp(response_range=pb.RangeResponse(kvs=[value()]))
    put = pb.ResponseOp(response_put=pb.PutResponse())
    done = etcd_replies.swapped_of(pb.TxnResponse(succeeded=True, responses=[put, whole]), 7, PREFIX, 1)
    assert (done.done, set(done.snapshot.values)) == (True, {"state"})
    failed = etcd_replies.swapped_of(pb.TxnResponse(responses=[whole]), 7, PREFIX, 1)
    assert (failed.done, failed.snapshot) == (False, done.snapshot)
    for responses, succeeded in (([], False), ([put], True), ([put, put], True), ([whole], True)):
        reply = pb.TxnResponse(succeeded=succeeded, responses=responses)
        assert "does not fit" in refused(partial(etcd_replies.swapped_of, reply, 7, PREFIX, 1))


def test_a_lease_is_granted_within_bounds() -> None:
    assert etcd_replies.lease_of(pb.LeaseGrantResponse(ID=5, TTL=3)) == Lease(5, 3)
    for reply in (pb.LeaseGrantResponse(ID=0, TTL=3), pb.LeaseGrantResponse(ID=5, TTL=0)):
        assert "granted lease" in refused(partial(etcd_replies.lease_of, reply))
    with pytest.raises(TroveError, match="no space") as caught:
        etcd_replies.lease_of(pb.LeaseGrantResponse(error="no space"))
    assert caught.value.spec is errors.COORDINATION_UNAVAILABLE


def test_a_lease_that_is_gone_has_no_time_to_live() -> None:
    assert etcd_replies.ttl_of(pb.LeaseKeepAliveResponse(ID=5, TTL=3), 5) == 3
    assert etcd_replies.ttl_of(pb.LeaseKeepAliveResponse(ID=5, TTL=0), 5) == 0
    assert etcd_replies.ttl_of(pb.LeaseKeepAliveResponse(ID=5, TTL=-1), 5) == 0
    assert "asked for 5" in refused(lambda: etcd_replies.ttl_of(pb.LeaseKeepAliveResponse(ID=6, TTL=3), 5))


def test_an_etcd_that_was_restored_or_replaced_is_noticed() -> None:
    seen = Seen()
    assert seen.check(pb.ResponseHeader(cluster_id=1, revision=9), seen.revision) == 9
    assert seen.check(pb.ResponseHeader(cluster_id=1, revision=9), 9) == 9
    late = seen.check(pb.ResponseHeader(cluster_id=1, revision=8), 7)
    assert (late, seen.revision) == (8, 9), "it was asked before the other answer came"
    assert "went back from revision 9 to 8" in refused(
        lambda: seen.check(pb.ResponseHeader(cluster_id=1, revision=8), 9)
    )
    assert "is another one" in refused(lambda: seen.check(pb.ResponseHeader(cluster_id=2, revision=10), 9))
    assert "no revision" in refused(lambda: Seen().check(pb.ResponseHeader(cluster_id=1), 0))


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20), st.text(max_size=30))
def test_the_range_of_a_group_has_its_keys_and_no_others(cluster: str, group: str, key: str) -> None:
    prefix = group_prefix("/trovemq", cluster, group).encode()
    end = etcd_replies.range_end(prefix)
    assert prefix <= prefix + key.encode("utf-8", "replace") < end
    other = group_prefix("/trovemq", cluster, group + "x").encode()
    assert not prefix <= other + b"state" < end


def test_names_with_a_slash_have_their_own_prefix() -> None:
    assert group_prefix("/trovemq/", "a/b", "c") == "/trovemq/a%2Fb/c/"
    assert group_prefix("/trovemq", "a", "b/c") == "/trovemq/a/b%2Fc/"
