import pytest

from sparkfleet.engines.startup_phases import StartupPhase
from sparkfleet.errors import EngineError
from sparkfleet.group.group_launch import SILENCE_S
from sparkfleet.group.start.startup_watch import StartupWatch, longest_s, never_ready

SHARDS = "Loading safetensors checkpoint shards:  42% Completed | 5/12 [00:10<00:14,  2.01s/it]"
GRAPHS = "\r  0%|  | 0/3 Capturing CUDA graphs\rCapturing CUDA graphs:  33%|███▎ | 1/3"


def test_a_rank_alone_shows_its_phase_and_never_a_line_of_the_engine():
    watch = StartupWatch(1, quiet_s=9)
    watch.update(0.0, ["INFO one\n(APIServer pid=7572) WARNING using a random seed\n\n"])
    assert (watch.words(), watch.step()) == ("", None)
    watch.update(1.0, [SHARDS])
    assert (watch.words(), watch.step()) == ("loading 42%", StartupPhase(phase="loading", share=0.42))


def test_a_build_of_an_embedded_model_shows_its_own_lines():
    watch = StartupWatch(1, quiet_s=9)
    watch.update(
        0.0,
        ["UserWarning: no CUDA\nbuiltin:tiny: training, step 7 of 400, loss 2.31, about 20 s left (12 s)\n"],
    )
    assert watch.words() == "step 7 of 400, about 20 s left"


def test_ranks_of_a_group_show_a_phase_each():
    watch = StartupWatch(2, quiet_s=9)
    watch.update(0.0, [SHARDS, ""])
    assert watch.words() == "rank 0: loading 42%"
    watch.update(1.0, [GRAPHS, SHARDS])
    assert watch.words() == "rank 0: warming up 33% · rank 1: loading 42%"
    assert watch.step() == StartupPhase(phase="loading", share=0.42), "the group is as far as its last rank"


def test_a_phase_stays_when_its_line_has_gone_by():
    watch = StartupWatch(2, quiet_s=9)
    watch.update(0.0, ["INFO torch.compile took 31.02 s in total", "x"])
    watch.update(1.0, ["INFO something else", "x"])
    assert watch.words() == "rank 0: compiling"


def test_silence_of_all_is_a_hang_and_a_word_of_one_is_not():
    watch = StartupWatch(2, quiet_s=10)
    watch.update(0.0, ["a", "b"])
    watch.update(9.0, ["a", "b"])
    watch.update(11.0 - 1e-9, ["a", "c"])
    watch.update(20.0, ["a", "c"])
    with pytest.raises(EngineError, match="printed no log line for 11 s"):
        watch.update(22.0, ["a", "c"])


def test_a_silent_start_whose_server_answers_is_named_with_its_answer():
    """A server that answered 500 for 15 minutes had "it hangs" as its reason."""
    watch = StartupWatch(1, quiet_s=10)
    watch.update(0.0, ["a"], "GET /health returns 500")
    with pytest.raises(EngineError) as caught:
        watch.update(11.0, ["a"], "GET /health returns 500")
    assert caught.value.what.endswith(
        "for 11 s during its start, and is not healthy: GET /health returns 500."
    )
    assert "hangs" not in caught.value.means
    with pytest.raises(EngineError) as caught:
        watch.update(11.0, ["a"])
    assert caught.value.what.endswith("for 11 s during its start.")
    assert caught.value.means == "It hangs, and was stopped."


def test_a_start_may_take_as_long_as_its_load_and_what_the_deployment_allows():
    usual = longest_s(0, SILENCE_S)
    assert usual == 3600
    assert longest_s(0, 15) == usual, "a short silence says nothing of the whole"
    assert longest_s(0, 7200) == 8 * usual
    assert usual + 1800 < longest_s(100 << 30, SILENCE_S) < usual + 7200


def test_a_start_that_never_gets_healthy_names_the_answer_of_its_health_path():
    assert never_ready(60, "GET /x returns 404", "retry").what.endswith(
        "and has not ended. GET /x returns 404. Its last output: retry."
    )
    assert never_ready(60, "", "").what.endswith("after 1 minutes, and has not ended.")
