"""Statuses of the v2 protocol."""

from __future__ import annotations

from collections import Counter

import pytest

from trovemq._rocketmq.statuses import check, error_of
from trovemq_broker.server.wire.statuses import CODES
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2


def test_what_the_broker_says_comes_back_as_the_row_it_was_made_of() -> None:
    shared = {code for code, count in Counter(CODES.values()).items() if count > 1}
    for symbol, code in CODES.items():
        error = error_of(v2.Status(code=code, message="why"), "b")
        assert error is not None
        assert error.message == "why"
        if code not in shared and symbol != "CONSUME_MSG_TIMEOUT":  # an operator's call, not a client's
            assert error.symbol == symbol


def test_success_is_not_an_error_and_an_unknown_code_is_one() -> None:
    check(v2.Status(code=v2.Code.OK), "b")
    check(v2.Status(code=v2.Code.MULTIPLE_RESULTS), "b")
    for code in (v2.Code.CODE_UNSPECIFIED, v2.Code.INTERNAL_SERVER_ERROR, 12_345):
        with pytest.raises(TroveError) as refused:
            check(v2.Status(code=code), "b")  # type: ignore[arg-type]
        assert refused.value.spec is errors.UNKNOWN_ERROR
        assert refused.value.fields["rocketmq_code"] == str(int(code))
