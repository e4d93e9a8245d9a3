from sparkfleet.control.liveness import Liveness


def test_requests_without_tokens_are_suspect_after_a_while():
    liveness = Liveness(stuck_s=20)
    assert not liveness.is_suspect(0, running=2, tokens=100)
    assert not liveness.is_suspect(19, running=2, tokens=100)
    assert liveness.is_suspect(20, running=2, tokens=100)


def test_a_token_that_moves_is_life():
    liveness = Liveness(stuck_s=20)
    for second in range(0, 100, 10):
        assert not liveness.is_suspect(second, running=1, tokens=second)


def test_an_idle_engine_is_not_suspect():
    liveness = Liveness(stuck_s=20)
    assert not any(liveness.is_suspect(second, running=0, tokens=5) for second in range(0, 100, 10))


def test_one_that_begins_to_work_after_a_long_rest_has_its_time():
    liveness = Liveness(stuck_s=20)
    liveness.is_suspect(0, running=0, tokens=5)
    liveness.is_suspect(1000, running=0, tokens=5)
    assert not liveness.is_suspect(1001, running=1, tokens=5)
    assert liveness.is_suspect(1021, running=1, tokens=5)


def test_metrics_that_do_not_answer_are_suspect():
    liveness = Liveness(stuck_s=20)
    liveness.is_suspect(0, running=0, tokens=5)
    assert not liveness.is_suspect(10, running=0, tokens=None)
    assert liveness.is_suspect(20, running=0, tokens=None)


def test_a_proof_of_life_counts():
    liveness = Liveness(stuck_s=20)
    liveness.is_suspect(0, running=1, tokens=5)
    assert liveness.is_suspect(20, running=1, tokens=5)
    liveness.proved(21)
    assert not liveness.is_suspect(40, running=1, tokens=5)
