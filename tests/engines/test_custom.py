import pytest

from sparkfleet.engines.registry import engine_by_name
from sparkfleet.errors import EngineError

CUSTOM = engine_by_name("custom")


@pytest.fixture
def launch(candidate, context):
    def launch(**fields):
        return CUSTOM.launch(
            candidate("custom", **{"runtime": "container", "image": "i:1", **fields}), context()
        )

    return launch


def test_the_image_runs_its_own_command_with_the_paths_in_variables(launch):
    one = launch(port=5005, health="/ready", env=(("VOICE", "tara"),))
    assert one.argv == ()
    assert (one.health_path, one.token_env) == ("/ready", "")
    assert dict(one.env) == {
        "SPARKFLEET_MODEL_PATH": "/models/m", "SPARKFLEET_MODEL_NAME": "m",
        "SPARKFLEET_HOST": "127.0.0.1", "SPARKFLEET_PORT": "5005", "VOICE": "tara",
    }  # fmt: skip


def test_a_command_is_taken_as_it_is(launch):
    assert launch(command=("python3", "serve.py", "--x"), port=1).argv == ("python3", "serve.py", "--x")


def test_a_process_needs_a_command(launch):
    with pytest.raises(EngineError, match="`command`"):
        launch(runtime="process", port=1)


def test_it_is_one_rank(launch):
    with pytest.raises(EngineError, match="one rank"):
        launch(nodes=2, port=1)


def test_a_model_that_is_a_name_of_the_hub_is_no_directory_to_mount(candidate, context):
    """Docker refuses a volume without an absolute path: no image of a user's own started, but for models in the cache."""
    named = context(model_path="canopylabs/orpheus-3b-0.1-ft", roots=())
    one = CUSTOM.launch(candidate("custom", runtime="container", image="i:1", port=5005), named)
    assert one.mounts == ()
    assert dict(one.env)["SPARKFLEET_MODEL_PATH"] == "canopylabs/orpheus-3b-0.1-ft"
