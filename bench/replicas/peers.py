"""The other brokers with several servers on loopback, each with a copy: Kafka, NATS JetStream, Redis."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.peers import jetstream, kafka, redis_streams
from bench.peers.peer import Command, Peer
from bench.peers.servers import Server
from bench.replicas.groups import Group, Program, programs
from trovemq.testing import free_port

KAFKA: Final = kafka.PEER
NATS: Final = jetstream.PEER
REDIS: Final = redis_streams.PEER
_KAFKA_PROPERTIES: Final = """process.roles={roles}
node.id={number}
controller.quorum.voters={voters}
listeners={listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/logs
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""
_NATS_CONFIGURATION: Final = """server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{directory}/jetstream", max_file_store: 20GB{always} }}
cluster {{ name: group, listen: "127.0.0.1:{cluster}", routes: [{routes}] }}
"""
_REDIS_SETTINGS: Final = "--bind 127.0.0.1 --appendonly yes --daemonize no --repl-diskless-sync-delay 0"


@contextmanager
def peer_group(peer: Peer, directory: Path, count: int, *, synced: bool) -> Iterator[Group]:
    """New servers of this broker, when they listen; its client waits until they know each other."""
    directory = directory.resolve()
    ports = [free_port() for _ in range(count)]
    places = [directory / f"server-{number}" for number in range(1, count + 1)]
    for place in places:
        place.mkdir(parents=True)
    commands = _COMMANDS[peer.name](places, ports, synced)
    with programs(directory, commands, ports) as started:
        first, *others = [one.pid for one in started]
        yield Group(peer.name, Server(peer, first, f"127.0.0.1:{ports[0]}"), tuple(others))


@contextmanager
def kafka_quorum(directory: Path, count: int) -> Iterator[tuple[list[Program], str]]:
    """New servers of Kafka, each of them a controller, too, so that any of them may end; their addresses."""
    directory = directory.resolve()
    ports = [free_port() for _ in range(count)]
    places = [directory / f"server-{number}" for number in range(1, count + 1)]
    for place in places:
        place.mkdir(parents=True)
    with programs(directory, _kafka(places, ports, False, controllers=count), ports) as started:
        yield started, ",".join(f"127.0.0.1:{port}" for port in ports)


def _kafka(places: list[Path], ports: list[int], _synced: bool, *, controllers: int = 1) -> list[Command]:
    """The first ones are controllers, too. To sync is a topic's setting."""
    theirs, commands = [free_port() for _ in range(controllers)], list[Command]()
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(theirs, 1))
    for number, (place, port) in enumerate(zip(places, ports, strict=True), 1):
        listeners = f"PLAINTEXT://127.0.0.1:{port}"
        is_controller = number <= controllers
        properties = place / "server.properties"
        properties.write_text(
            _KAFKA_PROPERTIES.format(
                roles="broker,controller" if is_controller else "broker",
                number=number,
                voters=voters,
                listeners=listeners
                + (f",CONTROLLER://127.0.0.1:{theirs[number - 1]}" if is_controller else ""),
                port=port,
                directory=place,
            )
        )
        store = ["kafka.tools.StorageTool", "format", "-t", kafka.CLUSTER_ID, "-c", str(properties)]
        subprocess.run([*kafka.JAVA, *store], check=True, capture_output=True)
        commands.append([*kafka.JAVA, "kafka.Kafka", properties])
    return commands


def _nats(places: list[Path], ports: list[int], synced: bool) -> list[Command]:
    clusters, commands = [free_port() for _ in ports], list[Command]()
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in clusters)
    for place, port, cluster in zip(places, ports, clusters, strict=True):
        configuration = place / "nats.conf"
        always = ", sync_interval: always" if synced else ""
        configuration.write_text(
            _NATS_CONFIGURATION.format(
                name=place.name, port=port, directory=place, always=always, cluster=cluster, routes=routes
            )
        )
        commands.append([NATS.program, "-c", configuration])
    return commands


def _redis(places: list[Path], ports: list[int], synced: bool) -> list[Command]:
    mode, commands = "always" if synced else "everysec", list[Command]()
    for place, port in zip(places, ports, strict=True):
        settings = f"--port {port} {_REDIS_SETTINGS} --appendfsync {mode}".split()
        copied = [] if port == ports[0] else ["--replicaof", "127.0.0.1", str(ports[0])]
        commands.append(["redis-server", *settings, "--save", "", "--dir", place, *copied])
    return commands


_COMMANDS: Final[dict[str, Callable[[list[Path], list[int], bool], list[Command]]]] = {
    KAFKA.name: _kafka,
    NATS.name: _nats,
    REDIS.name: _redis,
}
