"""The cost of asking who calls, in microseconds of one processor: `python -m bench.access`."""

from __future__ import annotations

import hmac
import itertools
import timeit
from collections.abc import Callable

from trovemq_broker.security import changes
from trovemq_broker.security.actions import Action, Kind, Resource
from trovemq_broker.security.rocketmq import SignatureChecker
from trovemq_broker.security.rules import SubjectRules, make_rule
from trovemq_broker.security.sealing import SealingKey
from trovemq_broker.security.table import SecurityTable
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto.authentication.calls import SigningKey, message_signer
from trovemq_store.files.memory import MemoryFileSystem

PATH = "/trovemq.v1.MessageService/Send"
DATE = "20261123T001500Z"
RULES = 200


def microseconds(call: Callable[[], object], count: int) -> float:
    """The best of five rounds."""
    return min(timeit.repeat(call, number=count, repeat=5)) / count * 1e6


def rules_of_one_subject() -> SubjectRules:
    rules = [
        make_rule(number, "alice", allow=number % 3 > 0, actions="Pub", resource=f"Topic:t{number}*")
        for number in range(1, RULES + 1)
    ]
    everything = make_rule(
        RULES + 1, "alice", allow=True, actions="Pub", resource="*", sources=["10.0.0.0/8"]
    )
    return SubjectRules([*rules, everything])


def checker_and_header() -> tuple[SignatureChecker, str]:
    numbers = itertools.count()
    table = SecurityTable.load(
        MemoryFileSystem(), SealingKey(bytes(32)), lambda size: next(numbers).to_bytes(size)
    )
    user = new_user("alice", UserKind.NORMAL, b"12345678", salt=bytes(16), now_ms=0)
    change = table.begin(changes.add_user(table.state, user))
    change.run()
    table.finish(change)
    signature = hmac.new(b"12345678", DATE.encode(), "sha1").hexdigest()
    header = f"MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time, Signature={signature}"
    return SignatureChecker(table), header


def checks() -> dict[str, Callable[[], object]]:
    """Of access."""
    rules, orders = rules_of_one_subject(), Resource(Kind.TOPIC, "t199-orders")
    return {
        "ACL check, remembered": lambda: rules.allowed(orders, Action.PUB, "10.0.0.1"),
        f"ACL check, first time, {RULES + 1} rules": lambda: rules._look_up(orders, "10.0.0.1"),
    }


def main() -> None:
    checker, header = checker_and_header()
    key = SigningKey(bytes(16), bytes(32))
    credential, small, large = key.credential(1, PATH), bytes(300), bytes(4_000_000)
    sign, mac = message_signer(key, 1), key.message_mac(1)
    rows: dict[str, tuple[Callable[[], object], int]] = {
        **{name: (call, 2_000) for name, call in checks().items()},
        "RocketMQ's signature, remembered": (lambda: checker.user_of(header, DATE), 100_000),
        "RocketMQ's signature, first time": (lambda: checker._check(header, DATE), 10_000),
        "signing a call": (lambda: key.credential(1, PATH), 10_000),
        "checking a call": (lambda: key.check_credential(credential, PATH), 10_000),
        "signing a message of 300 bytes": (lambda: sign(small), 10_000),
        "the MAC of 300 bytes": (lambda: mac(0, small), 10_000),
        "the MAC of 4 MB": (lambda: mac(0, large), 5),
    }
    for name, (call, count) in rows.items():
        print(f"{name:<40} {microseconds(call, count):>10.1f} us")


if __name__ == "__main__":
    main()
