"""The official Python client of RocketMQ 5: sends with 64 in flight, then receives and acknowledges.

    official.py ENDPOINTS SEND_TOPIC RECEIVE_TOPIC GROUP SECONDS

Prints one JSON object. Runs in an environment of its own: the client's protocol and ours do not mix.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

IN_FLIGHT = 64
RECEIVERS = 8
BATCH = 32
WARM_S = 1.0
BODY = bytes(range(256)) * 4


class Sending:
    """Asynchronous sends: each answer makes space for the next one."""

    def __init__(self, producer: Any, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._capacity = threading.Semaphore(IN_FLIGHT)
        self.times: list[float] = []
        self.failures = 0

    def run(self, seconds: float) -> float:
        """Sends for so long; the sends a second."""
        self.times = []
        begin = time.perf_counter()
        while time.perf_counter() < begin + seconds:
            self._capacity.acquire()
            message = Message()
            message.topic, message.body, message.tag, message.keys = self._topic, BODY, "tag", "key"
            started = time.perf_counter()
            self._producer.send_async(message).add_done_callback(
                lambda future, started=started: self._sent(future, started)
            )
        for _ in range(IN_FLIGHT):
            self._capacity.acquire()
        rate = len(self.times) / (time.perf_counter() - begin)
        self._capacity = threading.Semaphore(IN_FLIGHT)
        return rate

    def _sent(self, future: Any, started: float) -> None:
        if future.exception() is None:
            self.times.append(time.perf_counter() - started)
        else:
            self.failures += 1
        self._capacity.release()


class Receiving:
    """Threads that receive a batch and acknowledge each of its messages."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.times: list[float] = []
        self.failures = 0

    def run(self, seconds: float) -> float:
        """Receives for so long, or until there is nothing more; the messages a second."""
        self.times = []
        begin = time.perf_counter()
        threads = [threading.Thread(target=self._work, args=(begin + seconds,)) for _ in range(RECEIVERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(self.times) / (time.perf_counter() - begin)

    def _work(self, end: float) -> None:
        while time.perf_counter() < end:
            messages = self._consumer.receive(BATCH, 60)
            if not messages:
                return
            for message in messages:
                started = time.perf_counter()
                try:
                    self._consumer.ack(message)
                except Exception:
                    self.failures += 1
                else:
                    self.times.append(time.perf_counter() - started)


def measured(run: Callable[[float], float], work: Any, seconds: float) -> dict[str, Any]:
    run(WARM_S)
    rate = run(seconds)
    return {"rate": rate, "times": work.times[:: max(len(work.times) // 5_000, 1)], "failures": work.failures}


def main(endpoints: str, send_topic: str, receive_topic: str, group: str, seconds: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials("", ""), request_timeout=5)
    producer = Producer(configuration, topics=[send_topic])
    producer.startup()
    sending = Sending(producer, send_topic)
    sent = measured(sending.run, sending, float(seconds))
    producer.shutdown()
    consumer = SimpleConsumer(configuration, group, {receive_topic: FilterExpression("*")}, await_duration=5)
    consumer.startup()
    consumer._init_settings_event.wait(10)
    receiving = Receiving(consumer)
    received = measured(receiving.run, receiving, float(seconds))
    print(json.dumps({"send": sent, "receive": received}), flush=True)
    os._exit(0)  # the client leaves threads running


if __name__ == "__main__":
    main(*sys.argv[1:])
