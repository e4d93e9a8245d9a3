"""Values that packages pass to each other."""

import json
from functools import cached_property

import pytest
from pydantic import ValidationError

from sparkfleet.controlplane.api.api_models import ApplyRequest, JoinRequest, Prepared, SecretsRequest
from sparkfleet.runtime.base import Forward, RankSpec
from sparkfleet.runtime.files.token_secrets import TokenSecrets
from sparkfleet.values import Value


class Sides(Value):
    width: int
    height: int = 1

    @cached_property
    def area(self) -> int:
        return self.width * self.height


def test_a_copy_computes_anew_what_the_original_has_kept():
    one = Sides(width=2)
    assert one.area == 2
    other = one.model_copy(update={"width": 3})
    assert (other.area, one.area, one == Sides(width=2)) == (3, 2, True)
    assert other.model_copy().area == 3


SECRET = "hunter2-of-the-owner"


@pytest.mark.parametrize(
    ("model", "document"),
    [
        (ApplyRequest, {"plan": {"groups": [{"ladder": [{"candidate": {"env": [["TOKEN", SECRET]]}}]}]}}),
        (ApplyRequest, {"spec": {"env": {"TOKEN": SECRET}}}),
        (JoinRequest, {"ray_token": SECRET, "engine_secret": SECRET}),
        (Prepared, {"api_token": SECRET}),
        (SecretsRequest, {"engine_tokens": SECRET}),
        (RankSpec, {"secret_env": [["TOKEN", SECRET]]}),
        (Forward, {"token": SECRET, "port": 1}),
        (TokenSecrets, {"former": [SECRET, 1]}),
    ],
)
def test_no_error_about_a_document_shows_what_is_in_it(model, document):
    """It is printed by the program on the node, and is in the command's error and in logs."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(json.dumps(document))
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
