"""Messages from a file into a real broker and out again: produce, tail, consume, export, apply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_here
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow
COUNT = 3_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


def answer(broker: BrokerProcess, *line: str) -> list[dict[str, Any]]:
    code, out, err = run_here(broker.address, *line)
    assert code == 0, err
    return [json.loads(row) for row in out.splitlines()]


def test_a_file_goes_in_and_comes_out(broker: BrokerProcess, tmp_path: Path) -> None:
    answer(broker, "topic", "create", "orders", "--queues", "2", "--deduplicate", "1h")
    answer(broker, "group", "create", "billing")
    answer(broker, "group", "offset", "reset", "billing", "orders", "--to-min")
    file, state = tmp_path / "orders.csv", tmp_path / "position"
    file.write_text("id,text\n" + "".join(f"{number},order {number}\n" for number in range(COUNT)))
    produce = ("produce", "orders", str(file), "--key-field", "id", "--resume", str(state))
    assert answer(broker, *produce) == [{"topic": "orders", "messages": COUNT, "skipped": 0}]
    # As if it had been killed before it saved its position: messages sent again are not stored again.
    state.write_text(json.dumps(json.loads(state.read_text()) | {"messages": 500}))
    assert answer(broker, *produce) == [{"topic": "orders", "messages": COUNT - 500, "skipped": 500}]
    (found,) = answer(broker, "query", "orders", "2999")
    assert found["keys"] == "2999"

    everything = answer(broker, "tail", "orders", "--since", "1h", "--no-follow")
    assert len(everything) == COUNT
    assert [one["storeTimestamp"] for one in everything] == sorted(
        one["storeTimestamp"] for one in everything
    )
    assert answer(broker, "tail", "orders", "-n", "20", "--no-follow") == everything[-20:]

    looked_at = answer(broker, "consume", "orders", "--group", "billing", "-n", "10", "--no-ack")
    assert [one["attempt"] for one in looked_at] == [1] * 10
    consumed = answer(broker, "consume", "orders", "--group", "billing", "-n", str(COUNT), "--wait", "60s")
    places = {(one["queueId"], one["queueOffset"]) for one in consumed}
    assert len(places) == len(consumed) == COUNT
    assert {one["attempt"] for one in consumed} == {1}
    (lag,) = [one for one in answer(broker, "group", "lag", "--all") if one["topic"] == "orders"]
    assert (lag["group"], lag["lag"]) == ("billing", 0)


def test_what_is_exported_is_what_apply_finds(broker: BrokerProcess, tmp_path: Path) -> None:
    answer(broker, "topic", "create", "ordered", "--type", "FIFO", "--queues", "3")
    answer(broker, "group", "create", "slow", "--exponential", "1s,1m,2")
    for style in ("yaml", "json"):
        code, out, err = run_here(
            broker.address, "export", "--topic", "ordered", "--group", "slow", "-o", style
        )
        # `run_here` asks for JSON; the format after the verb wins
        assert code == 0, err
        file = tmp_path / style
        file.write_bytes(out)
        assert {one["change"] for one in answer(broker, "apply", str(file))} == {"unchanged"}
