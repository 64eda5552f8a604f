"""The golden stores: folders that Apache RocketMQ 5.4.0 wrote, each with RocketMQ's own answers about it.

See tests/golden/README.md for what they hold and for the members of a manifest.
"""

from __future__ import annotations

import functools
import gzip
import json
import tarfile
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

from trovemq_store.settings import StoreSettings

GOLDEN_DIRECTORY: Final = Path(__file__).parents[1] / "golden"
GOLDEN_NAMES: Final = ("collide", "crashed", "ipv6", "rollover", "small")
CLEAN_NAMES: Final = tuple(name for name in GOLDEN_NAMES if name != "crashed")

_NAMES: Final = {"messageId": "msgId", "bodyBase64": "body", "storedBodyBase64": "storedBody"}

Manifest = dict[str, Any]


@functools.cache
def load_manifest(name: str) -> Manifest:
    """The manifest of one store; shared, so not to be changed."""
    manifest: Manifest = json.loads(
        gzip.decompress((GOLDEN_DIRECTORY / f"{name}.manifest.json.gz").read_bytes())
    )
    return manifest


def unpack(name: str, directory: Path) -> Path:
    """A fresh copy of one store below `directory`; returns its root. Sparse entries stay sparse."""
    with tarfile.open(GOLDEN_DIRECTORY / f"{name}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and newer
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(directory)
    return directory / name


def as_manifest(fields: dict[str, Any]) -> dict[str, Any]:
    """A printed message as manifests have it: two names of its id, and the body in base64 alone."""
    found = {_NAMES.get(name, name): value for name, value in fields.items()}
    if "body" in fields:
        found["body"] = b64encode(fields["body"].encode()).decode()
    return found | {"uniqKey": found["properties"].get("UNIQ_KEY")} if "properties" in found else found


def settings_of(manifest: Manifest, **changes: Any) -> StoreSettings:
    """The settings with which RocketMQ wrote the store."""
    config = manifest["brokerConfig"]
    values = {
        "commit_log_file_size": int(config["mappedFileSizeCommitLog"]),
        "consume_queue_file_size": int(config["mappedFileSizeConsumeQueue"]),
        "index_slot_count": int(config["maxHashSlotNum"]),
        "index_item_count": int(config["maxIndexNum"]),
        "store_host": manifest["messages"][0]["storeHost"],
        "cluster": config["brokerClusterName"],
        "broker": config["brokerName"],
    }
    return StoreSettings(**(values | changes))
