from __future__ import annotations

from sparkfleet.runtime.environment import clean_environment, labels, steers_tools


def test_only_what_describes_the_user_is_kept():
    source = {
        **dict.fromkeys(
            ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_CACHE_HOME", "DOCKER_HOST"), "kept"
        ),
        **dict.fromkeys(
            ("RAY_JOB_ID", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "HF_TOKEN", "LD_PRELOAD"), "dropped"
        ),
    }
    clean = clean_environment(source)
    assert {k for k, v in clean.items() if v == "kept"} == {k for k, v in source.items() if v == "kept"}
    assert "dropped" not in clean.values()


def test_labels():
    assert labels("f1", "a/b") == {"SPARKFLEET_FLEET": "f1", "SPARKFLEET_RANK": "a/b"}


def test_what_says_something_to_programs_of_the_node():
    steering = (
        "PATH",
        "HOME",
        "LC_ALL",
        "LD_LIBRARY_PATH",
        "DOCKER_HOST",
        "CONTAINERS_CONF",
        "XDG_RUNTIME_DIR",
    )
    assert all(steers_tools(name) for name in steering)
    assert not any(steers_tools(name) for name in ("HF_TOKEN", "VLLM_API_KEY", "NCCL_DEBUG"))
