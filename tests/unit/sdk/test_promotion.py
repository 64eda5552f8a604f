"""A promotion that the node carries out, and after which it does not serve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_loop import fake_time
from trovemq._admin.replicas import Replicas
from trovemq.models.replica import Promotion
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

PROMOTION = Promotion(group="g", node="b", epoch=64, promised=("b", "c"), away=("a",), cut_bytes=0)


class Node:
    """Answers that it has that role, and no problem; without a role it does not answer."""

    def __init__(self, role: str) -> None:
        self._role = role

    async def status(self) -> Any:
        if not self._role:
            raise TroveError(errors.BROKER_UNREACHABLE, "it refuses connections")
        return SimpleNamespace(role=self._role, problem="")


@pytest.mark.parametrize(
    ("role", "reason"), [("follower", "its role is follower"), ("", "refuses connections")]
)
@fake_time
async def test_a_promotion_after_which_no_node_served_had_an_empty_reason(role: str, reason: str) -> None:
    unused: Any = None
    calls: Any = Node(role)
    with pytest.raises(TroveError, match=f"does not serve yet: .*{reason}") as error:
        await Replicas(unused)._serves(calls, PROMOTION)
    assert error.value.spec is errors.NOT_ENOUGH_REPLICAS
