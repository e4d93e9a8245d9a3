"""Engines run code of a checkpoint only if the candidate allows it, on every rank alike."""

import pytest

from sparkfleet.engines.registry import engine_by_name


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_flag_is_there_on_every_rank_if_the_deployment_allows_it_and_nowhere_else(
    candidate, context, engine, ranks
):
    for allowed in (True, False):
        one = candidate(
            engine, nodes=ranks, runtime="container", image="i@sha256:0", trust_remote_code=allowed
        )
        commands = [
            engine_by_name(engine).launch(one, context(rank, ranks, keys_dir="/state/keys")).argv
            for rank in range(ranks)
        ]
        serving = [argv for argv in commands if "worker.sh" not in " ".join(argv)]  # MPI passes it on
        given = [{"--trust-remote-code", "--trust_remote_code"} & {*argv} for argv in serving]
        assert [bool(flags) for flags in given] == [allowed] * len(serving)
        assert serving
