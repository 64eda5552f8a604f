"""The other brokers with several servers on loopback, each with a copy: Kafka, NATS JetStream, Redis."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.peers import jetstream, kafka, redis_streams
from bench.peers.peer import Command, Peer
from bench.peers.servers import Server
from bench.replicas.groups import Group, processes
from trovemq.testing import free_port

KAFKA: Final = kafka.PEER
NATS: Final = jetstream.PEER
REDIS: Final = redis_streams.PEER
_KAFKA_PROPERTIES: Final = """process.roles={roles}
node.id={number}
controller.quorum.voters=1@127.0.0.1:{controller}
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
    with processes(directory, commands, ports) as pids:
        yield Group(peer.name, Server(peer, pids[0], f"127.0.0.1:{ports[0]}"), tuple(pids[1:]))


def _kafka(places: list[Path], ports: list[int], _synced: bool) -> list[Command]:
    """The first one is the controller, too. To sync is a topic's setting."""
    controller, commands = free_port(), list[Command]()
    for number, (place, port) in enumerate(zip(places, ports, strict=True), 1):
        listeners = f"PLAINTEXT://127.0.0.1:{port}"
        is_controller = number == 1
        properties = place / "server.properties"
        properties.write_text(
            _KAFKA_PROPERTIES.format(
                roles="broker,controller" if is_controller else "broker",
                number=number,
                controller=controller,
                listeners=listeners + (f",CONTROLLER://127.0.0.1:{controller}" if is_controller else ""),
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


_COMMANDS: Final = {KAFKA.name: _kafka, NATS.name: _nats, REDIS.name: _redis}
