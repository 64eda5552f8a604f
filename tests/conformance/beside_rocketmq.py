"""Our broker in the cluster of a real RocketMQ nameserver, with RocketMQ's own clients and tools.

    python -m tests.conformance.beside_rocketmq

1. `alone`: the nameserver is RocketMQ's, the only broker ours. Java's clients and `mqadmin` know the
   nameserver alone, and run all their cases.
2. `mixed`: a broker of RocketMQ joins, with the same topics. Cases in which messages go to both run again.

Without Java and Maven it does nothing, and says so. The exit code is 0 when each case has passed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.conformance.rocketmq_peer import create_topic, rocketmq, why_missing
from tests.conformance.run import (
    BUILD,
    HERE,
    MQADMIN,
    REMOTING,
    Outcome,
    apply_topics,
    print_table,
    run_suite,
    try_again,
)
from trovemq.testing import BrokerProcess

MIXED_CASES: Final = (
    *("send_and_consume", "send_async", "send_one_way", "send_batch", "compressed", "sql_filter"),
    *("delay_level", "orderly", "broadcasting", "lite_pull", "retries", "dead_letter", "transaction"),
    "request_reply",
)
"""Others count queues of one broker."""
THEIRS: Final = {"brokerFastFailureEnable": False}
"""Else it refuses each request that has waited for 200 ms, and drops one-way sends: on busy cores, many."""
PREFIX: Final = "TROVE_REMOTING_"
GIVEN: Final = {"TIME_MAX_S": "600", "AT_ONCE": "4", "PATIENCE": "3"}
"""Of the suites: RocketMQ's two processes have the same cores as the client and our broker."""
REGISTERED_S_MAX: Final = 60


def run_beside(folder: Path) -> list[Outcome]:
    """The outcome of each suite. RuntimeError: a process does not start."""
    with rocketmq(folder / "rocketmq") as real:
        ours = BrokerProcess(
            name="ours",
            transactionCheckInterval=3000,
            transactionTimeOut=10_000,
            remoting_enable=True,
            rocketmq_nameserver=real.nameserver,
            ready_timeout=180,
        )
        with ours:
            apply_topics(HERE / "topics.json", ours.address, {})
            time.sleep(2)  # the next registration has them
            build = BUILD / "own"
            given = {"NAMESERVER": real.nameserver, **GIVEN}
            outcomes = [run_suite(REMOTING, HERE, build, real.nameserver, **given)]
            try_again(outcomes[0], HERE, build, real.nameserver, **given)
            outcomes += [run_suite(tools, HERE, build, ours.address, **given) for tools in MQADMIN]
            theirs = real.start_broker("theirs", folder / "store", THEIRS)
            for topic in json.loads((HERE / "topics.json").read_text())["topics"]:
                if topic["name"].startswith(PREFIX):
                    create_topic(theirs, topic["name"], topic["queues"], topic["type"])
            mixed = run_suite(REMOTING, HERE, build, real.nameserver, MIXED_CASES, **given)
            try_again(mixed, HERE, build, real.nameserver, **given)
            mixed.language = "mixed"
            return [*outcomes, mixed]


def main() -> int:
    if missing := why_missing():
        print(f"skipped: {missing}")
        return 0
    with TemporaryDirectory(prefix="beside-rocketmq-") as folder:
        outcomes = run_beside(Path(folder))
    print_table(outcomes)
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
