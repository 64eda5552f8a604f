"""The official Python client of RocketMQ 5: sends with 64 in flight, or receives and acknowledges.

    official.py send|receive TOPIC GROUP SECONDS TURNS ENDPOINTS...

The servers take turns of SECONDS each, after a warm-up each; each round begins with another. Prints a
JSON list with an object for each server. A turn ends with its last answer; the rate of one without messages
is 0. Runs in a separate environment: the client's protocol and ours do not mix.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
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
AWAIT_S = 1
TIMES_MAX = 5_000
BODY = bytes(range(256)) * 4


class Server(ABC):
    """The client's work with one server."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self._times: list[float] = []
        self._count = self._failures = 0
        self._last_answer = 0.0

    @abstractmethod
    def work(self, end: float) -> None:
        """Works until then, and returns when everything is answered."""

    def turn(self, seconds: float) -> None:
        self._times = []
        begin = time.perf_counter()
        self.work(begin + seconds)
        self._count += len(self._times)
        took = self._last_answer - begin
        self.rates.append(len(self._times) / took if self._times else 0.0)

    def answered(self, started: float) -> None:
        self._last_answer = time.perf_counter()
        self._times.append(self._last_answer - started)

    def failed(self) -> None:
        self._failures += 1

    def found(self) -> dict[str, Any]:
        times = self._times[:: max(len(self._times) // TIMES_MAX, 1)]
        return {"rates": self.rates, "times": times, "count": self._count, "failures": self._failures}


class Sending(Server):
    """Asynchronous sends: each answer makes space for the next one."""

    def __init__(self, configuration: Any, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._producer = Producer(configuration, topics=[topic])
        self._producer.startup()
        self._capacity = threading.Semaphore(IN_FLIGHT)

    def work(self, end: float) -> None:
        while time.perf_counter() < end:
            self._capacity.acquire()
            message = Message()
            message.topic, message.body, message.tag, message.keys = self._topic, BODY, "tag", "key"
            started = time.perf_counter()
            self._producer.send_async(message).add_done_callback(
                lambda future, started=started: self._sent(future, started)
            )
        for _ in range(IN_FLIGHT):
            self._capacity.acquire()
        self._capacity = threading.Semaphore(IN_FLIGHT)

    def _sent(self, future: Any, started: float) -> None:
        if future.exception() is None:
            self.answered(started)
        else:
            self.failed()
        self._capacity.release()


class Receiving(Server):
    """Threads that receive a batch and acknowledge each of its messages."""

    def __init__(self, configuration: Any, topic: str, group: str) -> None:
        super().__init__()
        filters = {topic: FilterExpression("*")}
        self._consumer = SimpleConsumer(configuration, group, filters, await_duration=AWAIT_S)
        self._consumer.startup()
        self._consumer._init_settings_event.wait(10)

    def work(self, end: float) -> None:
        threads = [threading.Thread(target=self._receive, args=(end,)) for _ in range(RECEIVERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _receive(self, end: float) -> None:
        while time.perf_counter() < end:
            try:
                messages = self._consumer.receive(BATCH, 60) or ()
            except Exception:
                self.failed()
                continue
            for message in messages:
                started = time.perf_counter()
                try:
                    self._consumer.ack(message)
                except Exception:
                    self.failed()
                else:
                    self.answered(started)


def server_of(work: str, topic: str, group: str, endpoints: str) -> Server:
    configuration = ClientConfiguration(endpoints, Credentials("", ""), request_timeout=5)
    return Sending(configuration, topic) if work == "send" else Receiving(configuration, topic, group)


def main(work: str, topic: str, group: str, seconds: str, turns: str, *all_endpoints: str) -> None:
    servers = [server_of(work, topic, group, endpoints) for endpoints in all_endpoints]
    for server in servers:
        server.turn(WARM_S)
        server.rates.clear()
    for turn in range(int(turns)):
        first = turn % len(servers)
        for server in servers[first:] + servers[:first]:
            server.turn(float(seconds))
    print(json.dumps([server.found() for server in servers]), flush=True)
    os._exit(0)  # the client leaves threads running


if __name__ == "__main__":
    main(*sys.argv[1:])
