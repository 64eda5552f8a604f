"""The bill of materials against the lock files."""

from __future__ import annotations

import json
import re
from email import message_from_string
from importlib.metadata import PackageMetadata
from pathlib import Path
from typing import cast

import pytest

from deploy.sbom import bill, licences_of, pins_of

ROOT = Path(__file__).resolve().parents[3]
LOCKS = sorted(ROOT.glob("locks/*.txt"))


def test_every_pinned_distribution_is_there_with_its_hashes() -> None:
    by_purl = {one["purl"]: one for one in bill()["components"]}
    assert len(LOCKS) > 5
    for lock in LOCKS:
        text = lock.read_text(encoding="utf-8")
        pinned = re.split(r"\n(?=\S)", text)
        assert len(pinned) == text.count("==") - text.count("'==") - len(re.findall(r"== '", text)), lock.name
        for entry in pinned:
            name, version = re.match(r"([^=\[]+)(?:\[.*\])?==(\S+)", entry).groups()  # type: ignore[union-attr]
            component = by_purl[f"pkg:pypi/{name}@{version}"]
            hashes = {one["content"] for one in component["hashes"]}
            assert set(re.findall(r"sha256:(\w+)", entry)) <= hashes
            assert f"locks/{lock.name}" in {one["value"] for one in component["properties"]}


def test_what_daemons_and_clients_run_on_is_required_and_the_rest_is_not() -> None:
    document = bill()
    scopes = {one["name"]: one.get("scope", "required") for one in document["components"]}
    assert {scopes[name] for name in ("grpcio", "trovemq-store", "trovemq", "lmdb")} == {"required"}
    assert {scopes[name] for name in ("pytest", "mypy", "uv")} == {"excluded"}
    (root,) = document["dependencies"]
    assert {ref.partition("/")[2].partition("@")[0] for ref in root["dependsOn"]} == {
        name for name, scope in scopes.items() if scope == "required"
    }


def test_the_document_has_the_members_of_cyclonedx() -> None:
    document = bill()
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["serialNumber"])
    refs = [one["bom-ref"] for one in document["components"]]
    assert len(refs) == len(set(refs)), "each reference is there once"
    for one in document["components"]:
        assert one["type"] == "library"
        assert one["name"]
        assert one["version"]
        for each in one.get("hashes", ()):
            assert each["alg"] == "SHA-256"
            assert re.fullmatch(r"[0-9a-f]{64}", each["content"])


def test_the_same_lock_files_give_the_same_bytes_and_name_no_host() -> None:
    first, second = (json.dumps(bill()) for _ in range(2))
    assert first == second
    assert "://" not in first


@pytest.mark.parametrize(
    "text", ["numpy>=2", "numpy==2.0", "-e .", "numpy @ file:x --hash=sha256:" + "a" * 64]
)
def test_a_line_without_a_version_or_a_hash_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not NAME==VERSION with hashes"):
        list(pins_of(text))


def test_licences_are_those_that_the_installed_distributions_declare() -> None:
    required = [one for one in bill()["components"] if one.get("scope", "required") == "required"]
    lacking = {one["name"] for one in required if not one.get("licenses")}
    assert lacking <= {"colorama"}, "it is for another system, and not installed"


@pytest.mark.parametrize(
    ("declared", "licences"),
    [
        (("License-Expression: MIT", "License: text"), [{"expression": "MIT"}]),
        (
            ("Classifier: License :: OSI Approved :: MIT License", "License: MIT"),
            [{"license": {"name": "MIT License"}}],
        ),
        (("License: OLDAP-2.8",), [{"license": {"name": "OLDAP-2.8"}}]),
        (("License: a whole\n        text of it", "Classifier: License :: OSI Approved"), None),
    ],
)
def test_a_licence_is_an_expression_or_the_name_that_its_author_wrote(
    declared: tuple[str, ...], licences: list[object] | None
) -> None:
    described = message_from_string("\n".join(("Name: a", *declared, "", "")))
    assert licences_of(cast(PackageMetadata, described)).get("licenses") == licences
