"""Requests of operators to a replica group, with wrong values."""

from __future__ import annotations

import pytest

from trovemq_broker.server.wire.replica_messages import added_member
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import replica_pb2 as pb

ADDRESS = "10.0.0.2:8081"


@pytest.mark.parametrize("wrong", ["", "nonsense", "10.0.0.2", "10.0.0.2:99999", "a b:1", "::1:80", "\n"])
@pytest.mark.parametrize("field", ["address", "replication"])
def test_an_address_that_is_none_was_stored_or_an_unknown_error(field: str, wrong: str) -> None:
    member = pb.ReplicaMember(node="d", address=ADDRESS, replication=ADDRESS)
    setattr(member, field, wrong)
    with pytest.raises(TroveError) as refused:
        added_member(pb.AddNodeRequest(member=member))
    assert refused.value.spec is errors.REQUEST_ILLEGAL


def test_a_member_is_added_with_its_addresses() -> None:
    member = pb.ReplicaMember(node="d", address=ADDRESS, replication="[::1]:8083", voter=True)
    added = added_member(pb.AddNodeRequest(member=member))
    assert (added.node, added.address, added.replication) == ("d", ADDRESS, "[::1]:8083")
