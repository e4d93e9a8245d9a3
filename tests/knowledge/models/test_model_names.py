"""Names of models without owner and format."""

from __future__ import annotations

import pytest

from sparkfleet.knowledge.models.model_names import plain


@pytest.mark.parametrize(
    "name",
    [
        "turboderp/GLM-5.3-Flash-exl3 4.05bpw",
        "brandonmusic/GLM-5.3-Flash-tr3-4bpw",
        "Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw",
    ],
)
def test_both_names_of_exl3_are_formats(name: str) -> None:
    """TR3 is the trellis of EXL3: as a name of the model it would hide what was published of the same one."""
    assert plain(name) == "glm-5.3-flash"
