"""Sends until a line comes, and receives until its input ends; the runner stops and starts brokers meanwhile.

It prints `started`, then for each send `sent TOPIC BODY` or `refused TOPIC BODY WHY`, and `received TOPIC
BODY`. Bodies of the FIFO topic are GROUP-NUMBER.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from typing import Any

from rocketmq import FilterExpression, SimpleConsumer
from suite import TLS, _configuration, _message, _producer, _started

TOPICS = os.environ["TOPIC"], os.environ["FIFO_TOPIC"]
GROUPS = 8
PAUSE_S = 0.2

_silent = threading.Event()
_saying = threading.Lock()


def _say(*words: object) -> None:
    with _saying:
        print(" ".join(map(str, words)).replace("\n", " "), flush=True)


def _send(producer: Any, topic: str, body: str, message_group: str = "") -> None:
    try:
        producer.send(_message(topic, body.encode(), "steady", message_group=message_group))
    except Exception as error:  # each client has its own errors
        _say("refused", topic, body, error)
    else:
        _say("sent", topic, body)


def _send_all(producer: Any, topic: str, *, ordered: bool) -> None:
    for number in itertools.count():
        if _silent.is_set():
            return
        group = f"g{number % GROUPS}"
        _send(producer, topic, f"{group}-{number}", group if ordered else "")
        time.sleep(PAUSE_S)


def _receive(topic: str) -> None:
    consumer = _started(
        lambda: SimpleConsumer(
            _configuration(),
            f"STEADY_{topic}",
            {topic: FilterExpression("*")},
            await_duration=5,
            tls_enable=TLS,
        )
    )
    _say("started")
    while True:
        try:
            for message in consumer.receive(32, 30):
                _say("received", topic, message.body.decode())
                consumer.ack(message)
        except Exception as error:  # a broker is away
            _say("unreceived", topic, error)
            time.sleep(PAUSE_S)


def main() -> None:
    producer = _producer(*TOPICS)
    _say("started")
    for topic in TOPICS:
        threading.Thread(target=_receive, args=(topic,), daemon=True).start()
        arguments = {"ordered": topic == TOPICS[1]}
        threading.Thread(target=_send_all, args=(producer, topic), kwargs=arguments, daemon=True).start()
    for _ in sys.stdin:
        _silent.set()
    os._exit(0)


if __name__ == "__main__":
    main()
