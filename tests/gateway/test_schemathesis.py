"""The page's API against its own OpenAPI document: schemathesis makes requests that it allows, and ones that it forbids."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from running_gateway import ADMIN, RunningGateway
from schemathesis import GenerationMode
from schemathesis.core.parameters import ParameterLocation

from sparkfleet.gateway.page.openapi import openapi

SCHEMA = schemathesis.openapi.from_dict(openapi("0"))
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
ALLOWED = [one for one in OPERATIONS if "{group}" not in one.path]
"""schemathesis makes no name with a slash."""
FORBIDDEN = [one for one in OPERATIONS if one.query or one.path_parameters]
"""Those without a parameter forbid nothing."""


def label(one: Any) -> str:
    return one.value if isinstance(one, GenerationMode) else one.label


@pytest.mark.parametrize(
    ("operation", "mode"),
    [
        *((one, GenerationMode.POSITIVE) for one in ALLOWED),
        *((one, GenerationMode.NEGATIVE) for one in FORBIDDEN),
    ],
    ids=label,
)
def test_every_operation_answers_as_its_document_has_it(
    running: RunningGateway, operation: Any, mode: Any
) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def answers(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        header = case.meta.components.get(ParameterLocation.HEADER)
        # Ours replaces a header that was left out, and the request would be a valid one.
        assume(header is None or header.mode is GenerationMode.POSITIVE)
        case.call_and_validate(
            base_url=f"http://127.0.0.1:{running.server.port}", headers={"Authorization": f"Bearer {ADMIN}"}
        )

    answers()
