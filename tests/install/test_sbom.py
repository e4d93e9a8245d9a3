"""sbom.cdx.json: every package that a node gets, with the hashes that pip checks."""

import json
import re
from pathlib import Path

from sparkfleet.install.release import release

SBOM = json.loads((Path(__file__).parents[2] / "sbom.cdx.json").read_text())


def test_it_has_every_package_of_a_node_with_its_hashes():
    components = {one["purl"]: one for one in SBOM["components"]}
    assert {f"pkg:pypi/{pin.replace('==', '@')}" for pin in release().pins} <= components.keys()
    for line in release().hashes:
        pin, *wheels = line.split()
        hashes = {one["content"] for one in components[f"pkg:pypi/{pin.replace('==', '@')}"]["hashes"]}
        assert {wheel.removeprefix("--hash=sha256:") for wheel in wheels} == hashes
    assert all(
        re.fullmatch("[0-9a-f]{64}", one["content"]) for c in components.values() for one in c["hashes"]
    )


def test_it_is_a_cyclonedx_document_whose_references_exist():
    assert (SBOM["bomFormat"], SBOM["specVersion"]) == ("CycloneDX", "1.6")
    known = {SBOM["metadata"]["component"]["bom-ref"], *(one["bom-ref"] for one in SBOM["components"])}
    assert len(known) == len(SBOM["components"]) + 1
    assert {ref for one in SBOM["dependencies"] for ref in (one["ref"], *one["dependsOn"])} == known
