import pytest

from sparkfleet.group.hang_detector import HangDetector
from sparkfleet.group.token_patience import patience_s
from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.specs.timeouts import Timeouts


def band(low):
    return Band(low=low, mid=low * 1.5, high=low * 2)


def test_work_without_a_figure_that_moves_is_suspect_after_a_while():
    detector = HangDetector(Timeouts(stuck_s=20))
    assert not detector.is_suspect(0, requests=2, figures=(100,))
    assert not detector.is_suspect(19, requests=2, figures=(100,))
    assert detector.is_suspect(20, requests=2, figures=(100,))


@pytest.mark.parametrize("moving", [0, 1])
def test_any_figure_that_moves_is_life(moving):
    """A long prefill takes blocks of the cache, and generates nothing."""
    detector = HangDetector(Timeouts(stuck_s=20))
    for second in range(0, 100, 10):
        figures = [5.0, 0.25]
        figures[moving] += second
        assert not detector.is_suspect(second, requests=1, figures=tuple(figures))


def test_an_engine_that_says_it_is_idle_has_to_show_it_now_and_then():
    detector = HangDetector(Timeouts(stuck_s=20, idle_s=60))
    assert not any(detector.is_suspect(second, requests=0, figures=(5,)) for second in range(0, 60, 10))
    assert detector.is_suspect(60, requests=0, figures=(5,))
    detector.note_token(61)
    assert not detector.is_suspect(100, requests=0, figures=(6,))


def test_one_that_begins_to_work_after_a_long_rest_has_its_time():
    detector = HangDetector(Timeouts(stuck_s=20, idle_s=60))
    detector.is_suspect(0, requests=0, figures=(5,))
    detector.is_suspect(50, requests=0, figures=(5,))
    assert not detector.is_suspect(51, requests=1, figures=(5,))
    assert not detector.is_suspect(70, requests=1, figures=(5,))
    assert detector.is_suspect(71, requests=1, figures=(5,))


def test_requests_that_come_and_go_are_no_life():
    """Clients give up and others come: nothing has moved."""
    detector = HangDetector(Timeouts(stuck_s=20, idle_s=60))
    readings = [(second, 1 if second % 14 < 10 else 0) for second in range(0, 60, 2)]
    assert any(detector.is_suspect(second, requests=requests, figures=(5,)) for second, requests in readings)


def test_what_is_asked_of_a_suspect_does_not_clear_it():
    """It waits for capacity that never comes free: one more that waits is no movement, nor is it when that one gives up."""
    detector = HangDetector(Timeouts(stuck_s=20, idle_s=60))
    detector.is_suspect(0, requests=0, figures=(5,))
    assert detector.is_suspect(60, requests=0, figures=(5,))
    assert detector.is_suspect(62, requests=1, figures=(5,))
    assert detector.is_suspect(64, requests=0, figures=(5,))
    assert not detector.is_suspect(66, requests=1, figures=(6,))


def test_a_suspect_that_says_it_has_nothing_to_do_any_more_is_one_still():
    """Clients that give up take nothing from the suspicion."""
    detector = HangDetector(Timeouts(stuck_s=20, idle_s=60))
    detector.is_suspect(0, requests=1, figures=(5,))
    assert detector.is_suspect(20, requests=1, figures=(5,))
    assert detector.is_suspect(22, requests=0, figures=(5,))


def test_metrics_that_do_not_answer_are_suspect():
    detector = HangDetector(Timeouts(stuck_s=20))
    detector.is_suspect(0, requests=0, figures=(5,))
    assert not detector.is_suspect(10, requests=0, figures=None)
    assert detector.is_suspect(20, requests=0, figures=None)


def test_a_proof_of_life_counts():
    detector = HangDetector(Timeouts(stuck_s=20))
    detector.is_suspect(0, requests=1, figures=(5,))
    assert detector.is_suspect(20, requests=1, figures=(5,))
    detector.note_token(21)
    assert not detector.is_suspect(40, requests=1, figures=(5,))
    assert detector.is_suspect(41, requests=1, figures=(5,))


def test_it_is_waited_for_as_long_as_the_longest_prefill_takes():
    prediction = Prediction(memory_bytes_per_rank=band(1), prefill_tps=band(1000))
    assert patience_s(100_000, 4, prediction, steps=True, proof_s=30) == 200
    assert patience_s(512, 4, prediction, steps=True, proof_s=30) == 30


def test_where_only_the_end_of_a_request_shows_it_is_waited_for_the_longest_answer():
    rates = {"prefill_tps": band(1000), "decode_tps_per_request": band(20), "decode_tps_aggregate": band(40)}
    prediction = Prediction(memory_bytes_per_rank=band(1), concurrency=4, **rates)
    assert patience_s(8000, 1, prediction, steps=False, proof_s=30) == 2 * (8 + 800), (
        "four at once: ten tokens per second each"
    )
    assert patience_s(8000, 4, prediction, steps=False, proof_s=30) == 2 * (32 + 800)


def test_where_nothing_is_predicted_the_slowest_counts():
    prediction = Prediction(memory_bytes_per_rank=band(1))
    assert patience_s(140_000, 1, prediction, steps=True, proof_s=30) == 2000
    assert patience_s(1400, 1, prediction, steps=False, proof_s=30) == 2 * (10 + 700)


def test_an_engine_whose_counters_do_not_move_is_named_before_it_is_probed():
    detector = HangDetector(Timeouts(stuck_s=20))
    for second in range(0, 10, 2):
        assert not detector.is_suspect(second, requests=1, figures=(5,))
    assert detector.doubt(7.9) == ""
    assert detector.doubt(9) == (
        "the engine's counters have not moved for 9 s: it hangs, or computes a long prompt; if a probe gets no token either,"
        " it is restarted"
    )
    detector.is_suspect(10, requests=1, figures=(6,))
    assert detector.doubt(12) == ""


def test_an_engine_whose_metrics_do_not_answer_is_named_although_it_was_idle():
    """The whole engine was stopped (SIGSTOP) for 47 s, and `status` named it after 25 s."""
    detector = HangDetector(Timeouts(stuck_s=20, idle_s=60))
    detector.is_suspect(0, requests=0, figures=(5,))
    detector.is_suspect(50, requests=0, figures=(5,))
    assert detector.doubt(51) == ""
    detector.is_suspect(57, requests=0, figures=None)
    assert detector.doubt(57) == ""
    assert detector.doubt(60).startswith("the engine's metrics have not answered for 10 s: it hangs; ")
    detector.is_suspect(62, requests=0, figures=(5,))
    assert detector.doubt(62) == ""


def test_the_probe_of_an_idle_engine_is_no_minute_of_silence():
    """The probe is a request, too: an engine that has rested for a minute has had work since then only."""
    detector = HangDetector(Timeouts(stuck_s=20, idle_s=60))
    detector.is_suspect(0, requests=0, figures=(5,))
    assert detector.is_suspect(60, requests=0, figures=(5,))
    assert detector.is_suspect(62, requests=1, figures=(5,))
    assert detector.doubt(64) == ""
    assert detector.doubt(72).startswith("the engine's counters have not moved for 10 s")


def test_an_idle_engine_is_in_no_doubt_and_one_that_was_never_read_neither():
    detector = HangDetector(Timeouts())
    assert detector.doubt(1000) == ""
    detector.is_suspect(0, requests=0, figures=(5,))
    assert detector.doubt(1000) == ""
