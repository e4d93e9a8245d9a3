"""Writes sbom.cdx.json: everything that `up` installs on a node, as CycloneDX 1.6, with the SHA-256 of each wheel.

The packages and hashes are those of sparkfleet/install/hashes.txt, with which pip checks what it downloads. Engines are not
in it: their images bring them. The file depends on nothing but those pins, so that two runs write the same bytes.

    python scripts/sbom.py [--check]
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkfleet import __version__

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "sbom.cdx.json"
HASHES = ROOT / "sparkfleet" / "install" / "hashes.txt"
SPACE = uuid.UUID("6a1f4b1e-5b0e-5d3f-9d0c-0f1e6f1c7a55")
"""Namespace of the serial number, which names the content."""


def document() -> dict[str, Any]:
    """The bill of materials."""
    components = list(_components())
    own = f"pkg:pypi/sparkfleet@{__version__}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(SPACE, json.dumps(components))}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "sparkfleet",
                "version": __version__,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in components]}],
    }


def _components() -> Iterator[dict[str, Any]]:
    for line in HASHES.read_text().splitlines():
        if line and not line.startswith("#"):
            pin, *wheels = line.split()
            name, _, version = pin.partition("==")
            purl = f"pkg:pypi/{name}@{version}"
            yield {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "hashes": [
                    {"alg": "SHA-256", "content": wheel.removeprefix("--hash=sha256:")} for wheel in wheels
                ],
            }


def main() -> int:
    """Write the file, or with `--check` name it if it is stale."""
    text = json.dumps(document(), indent=1) + "\n"
    if TARGET.is_file() and TARGET.read_text() == text:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{TARGET.relative_to(ROOT)} is stale", file=sys.stderr)
        return 1
    TARGET.write_text(text)
    print(f"wrote {TARGET.relative_to(ROOT)}: {len(document()['components'])} packages")
    return 0


if __name__ == "__main__":
    from arguments import check_arguments  # beside this script

    check_arguments(__doc__, "--check")
    sys.exit(main())
