"""Problems of the texts of deployments."""

from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.specs.load import parse_deployment


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_deployment(text, "d.yaml")
    return str(caught.value).splitlines()


def with_line(line: str) -> str:
    return f"name: x\nmodel: builtin:tiny\n{line}\n"
