"""The part that a caller who is no super user sees of the cluster's configuration."""

from __future__ import annotations

from trovemq_broker.security.actions import Kind
from trovemq_broker.server.access.needs import ROWS
from trovemq_proto.v1 import cluster_config_pb2 as pb

LISTS = ("unlisted", "differing", "withheld", "dropped", "failed")


def test_the_status_named_users_and_topics_that_its_reader_may_not_know() -> None:
    kinds = ("topic", "group", "user", "rule", "quota", "broker")
    names = [pb.ConfigName(kind=kind, name=name) for kind in kinds for name in ("mine", "other")]
    status = pb.ConfigStatus(broker="a")
    for each in LISTS:
        getattr(status, each).extend(names)
    show = ROWS["/trovemq.v1.ClusterConfigService/GetConfigStatus"].show
    assert show is not None
    shown = show(status, lambda kind, name: kind is not Kind.CLUSTER and name == "mine")
    assert shown.broker == "a"
    for each in LISTS:
        found = [(one.kind, one.name) for one in getattr(shown, each)]
        assert found == [("topic", "mine"), ("group", "mine"), ("broker", "mine"), ("broker", "other")]
