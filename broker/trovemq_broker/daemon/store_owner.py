"""Whose store it is: `trovemq/broker.json` has the name and the cluster of the broker that used it last.

A broker that is started with another one's store would serve its topics and messages under a wrong name, and
the right broker would be missing: the start is refused. A store without the file (RocketMQ's, or an earlier
version's) belongs to the broker that opens it first.
"""

from __future__ import annotations

from typing import Final

from trovemq_broker.daemon.node_settings import NodeSettings
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.json_file import JsonFile

PATH: Final = "trovemq/broker.json"
FORMAT_VERSION: Final = 1


def take_store(files: FileSystem, settings: NodeSettings) -> None:
    """Checks the owner of an open store, and notes this broker. Blocks.

    On a full disk it is noted by a later start: a broker starts there, too.

    Raises TroveError STORE_OTHER_BROKER, STORE_NEWER; STORE_FAILED if a sync failed.
    """
    file = JsonFile(files, PATH, sealed=True)
    owner, own = _owner(file), (settings.cluster, settings.name)
    if owner == own:
        return
    if owner is not None:
        cluster, name = owner
        former = f"{cluster}/{name}"
        if settings.renamed_from not in (former, name):
            raise TroveError(
                errors.STORE_OTHER_BROKER,
                f"the store {settings.store} is that of broker {name} of cluster {cluster}, and this is"
                f" broker {settings.name} of cluster {settings.cluster}: name the right --store, or --name"
                " and --cluster; if the broker gets a new name, or the store is a copy:"
                f" --set renamed_from={former}",
                broker=name,
                cluster=cluster,
            )
        get_logger().warning("store.renamed", former=former, name=settings.name, cluster=settings.cluster)
    try:
        file.save({"formatVersion": FORMAT_VERSION, "broker": settings.name, "cluster": settings.cluster})
    except TroveError as error:
        if error.spec is errors.STORE_FAILED:
            raise
        get_logger().warning("store.owner_not_noted", reason=str(error))


def _owner(file: JsonFile) -> tuple[str, str] | None:
    """Cluster and name; None if they are not known: a damaged file counts as missing."""
    try:
        document = file.load() or {}
    except DamagedError:
        return None
    version = document.get("formatVersion")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise TroveError(
            errors.STORE_NEWER, f"{PATH} has format {version}; this version knows {FORMAT_VERSION}"
        )
    cluster, name = document.get("cluster"), document.get("broker")
    return (cluster, name) if isinstance(cluster, str) and isinstance(name, str) else None
