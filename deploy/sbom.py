"""The bill of materials, in CycloneDX 1.6, made of the lock files: `make sbom`, and a part of `make dist`.

One component for each pinned distribution, with every hash that may be installed. Broker, nameserver, SDK and
command line run on those of locks/run.txt (scope "required"); those that only building, testing, pages,
demo or pipeline need are "excluded". Licences are those that the installed distributions declare, so one that
is not installed here, as one for another system, has none. Nothing is asked of a network, and the same lock
files and environment give the same bytes.

cyclonedx-python-lib would bring nine distributions for the thirty lines that write the JSON, and would read
neither our lock files nor the licences. `make soak` checks the document with it.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
RUNTIME: Final = "locks/run.txt"
PROJECTS: Final = ("proto", "store", "rpc", "daemon", "nameserver", "clients/python", "console", "pipeline")
NAMESPACE: Final = uuid.UUID("6d8e5a9c-2f04-5c0b-9f61-0c0a4ce51f7e")

_PIN: Final = re.compile(r"([A-Za-z0-9._-]+)(\[[^\]]*\])?==([^ ;\\]+)(?: ; ([^\\]+))?")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass
class Pin:
    """One distribution of the lock files. `markers`: where it is installed; empty: everywhere."""

    name: str
    version: str
    hashes: set[str] = field(default_factory=set)
    markers: set[str] = field(default_factory=set)
    locks: list[str] = field(default_factory=list)

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"

    def component(self) -> dict[str, Any]:
        properties = [{"name": "trovemq:lock", "value": lock} for lock in self.locks]
        properties += [{"name": "trovemq:marker", "value": marker} for marker in sorted(self.markers)]
        return {
            "type": "library",
            "bom-ref": self.purl,
            "name": self.name,
            "version": self.version,
            "scope": "required" if RUNTIME in self.locks else "excluded",
            "purl": self.purl,
            "hashes": [{"alg": "SHA-256", "content": content} for content in sorted(self.hashes)],
            **licences(self.name),
            "properties": properties,
        }


def pins_of(text: str) -> Iterator[Pin]:
    """The pins of one lock file. ValueError for a line that is none, and for a pin without a hash."""
    for entry in text.replace("\\\n", " ").splitlines():
        line = entry.strip()
        if not line or line.startswith("#"):
            continue
        found = _PIN.match(line)
        hashes = set(_HASH.findall(line))
        if found is None or not hashes:
            raise ValueError(f"{line[:80]!r} is not NAME==VERSION with hashes")
        name, _, version, marker = found.groups()
        marker = (marker or "").partition("--hash")[0].strip()
        yield Pin(re.sub(r"[-_.]+", "-", name).lower(), version, hashes, {marker} if marker else set())


def read_pins(root: Path) -> list[Pin]:
    """Of every lock file, by name and version; one that several lock is one, and is there for all of them."""
    pins: dict[tuple[str, str], Pin] = {}
    locks = [f"locks/{path.name}" for path in root.glob("locks/*.txt")]
    for lock in sorted(locks, key=lambda name: (name != RUNTIME, name)):
        for pin in pins_of((root / lock).read_text(encoding="utf-8")):
            known = pins.setdefault((pin.name, pin.version), pin)
            known.hashes |= pin.hashes
            known.markers &= pin.markers  # one lock file that installs it everywhere is enough
            known.locks.append(lock)
    return [pin for _, pin in sorted(pins.items())]


def licences(name: str) -> dict[str, Any]:
    """The member `licenses` of an installed distribution; {} if it is not installed or declares none."""
    try:
        declared = metadata(name)
    except PackageNotFoundError:
        return {}
    return licences_of(declared)


def licences_of(declared: PackageMetadata) -> dict[str, Any]:
    """declared: a distribution's METADATA. An SPDX expression, or else names as their authors wrote them."""
    for expression in declared.get_all("License-Expression") or ():
        return {"licenses": [{"expression": expression}]}
    names = [
        one.rpartition(" :: ")[2]
        for one in declared.get_all("Classifier") or ()
        if one.startswith("License :: ") and one.count(" :: ") > 1
    ]
    names = names or [one for one in declared.get_all("License") or () if one and "\n" not in one]
    return {"licenses": [{"license": {"name": one}} for one in names]} if names else {}


def bill(root: Path = ROOT, built: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The document. built: the files of our distributions, each with its SHA-256."""
    pins, own = read_pins(root), [_project(root / name, built or {}) for name in PROJECTS]
    product = _project(root / "broker", built or {}) | {"type": "application"}
    components = [*own, *(pin.component() for pin in pins)]
    required = [one["bom-ref"] for one in components if one.get("scope") != "excluded"]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": product},
        "components": components,
        "dependencies": [{"ref": product["bom-ref"], "dependsOn": required}],
    }
    serial = uuid.uuid5(NAMESPACE, json.dumps(document, sort_keys=True))
    return {**document, "serialNumber": f"urn:uuid:{serial}"}


def _project(directory: Path, built: Mapping[str, str]) -> dict[str, Any]:
    project = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    prefix = f"{name.replace('-', '_')}-"
    hashes = [{"alg": "SHA-256", "content": sha} for file, sha in built.items() if file.startswith(prefix)]
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "licenses": [{"license": {"id": project["license"]}}],
        **({"hashes": hashes} if hashes else {}),
    }


def main() -> None:
    """Writes the file that is named, or standard output."""
    text = json.dumps(bill(), indent=2) + "\n"
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
