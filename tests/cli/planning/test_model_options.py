"""Fields of a deployment as options."""

from typing import get_args

from sparkfleet.cli.planning.model_options import ContentName, ModelOptions, ObjectiveName
from sparkfleet.specs.deployment import Objective, TextKind


def test_the_names_are_those_of_a_deployment():
    assert tuple(ObjectiveName) == get_args(Objective)
    assert tuple(ContentName) == get_args(TextKind)


def test_words_of_a_command_line():
    assert ModelOptions().words == ""
    found = ModelOptions(65536, None, ObjectiveName.CONTEXT, ContentName.AGENT)
    assert found.words == " --context 65536 --objective context --content agent"
    assert found.fields == {"context": 65536, "objective": "context", "content": "agent"}
