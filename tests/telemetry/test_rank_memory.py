"""Memory of ranks: of real processes of this machine, with what a GPU's driver and a container's tool print about them."""

import subprocess
import sys

import pytest

from sparkfleet.runtime.base import Phase, RankId, RankStatus
from sparkfleet.telemetry import rank_memory
from sparkfleet.telemetry.rank_memory import container_of, memory_of_ranks
from sparkfleet.units import MIB

HOLDS = "import sys; held = bytearray(64 << 20); print('holds', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS!r}])"


def status(pid, **more):
    id_ = RankId(fleet="home", deployment="tiny", generation=2, replica=1, rank=1)
    return RankStatus(id=id_, digest="d", phase=Phase.RUNNING, port=1, pid=pid, started_at=0.0, **more)


@pytest.fixture
def engine():
    """A process whose child holds 64 MiB."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PARENT], **pipes) as running:
        assert running.stdout.readline() == "holds\n"
        yield running
        running.stdin.close()


def answers(monkeypatch, outputs):
    """Commands print these, by their first word; others are not on the node."""

    def run(argv):
        if argv[0] not in outputs:
            raise FileNotFoundError(argv[0])
        return 0, outputs[argv[0]], ""

    monkeypatch.setattr(rank_memory, "run_here", run)


def test_a_rank_takes_what_its_process_and_their_children_hold(engine, monkeypatch):
    answers(monkeypatch, {})
    (found,) = memory_of_ranks([status(engine.pid)])
    assert (found.deployment, found.generation, found.replica, found.rank) == ("tiny", 2, 1, 1)
    assert 64 * MIB < found.bytes < 512 * MIB


def test_what_the_driver_holds_for_it_is_added(engine, monkeypatch):
    answers(monkeypatch, {})
    (alone,) = memory_of_ranks([status(engine.pid)])
    answers(monkeypatch, {"nvidia-smi": f"{engine.pid}, python3, 2048\n1, other, 4096\n"})
    (found,) = memory_of_ranks([status(engine.pid)])
    assert found.bytes - alone.bytes == pytest.approx(2048 * MIB, abs=32 * MIB)


def test_an_engine_that_has_ended_or_is_not_found_takes_none(monkeypatch):
    answers(monkeypatch, {})
    assert memory_of_ranks([status(1, exit_code=0), status(None), status(2**22 + 1)]) == ()


def test_a_container_is_measured_from_its_first_process(engine, monkeypatch):
    """The rank's process is the tool's: `docker run` holds 30 MB, and its engine descends from the daemon."""
    words = (b"/usr/bin/docker", b"run", b"--rm", b"--name", b"sparkfleet-home-tiny-g2-1-1", b"image")
    monkeypatch.setattr(rank_memory, "container_of", lambda _: container_of(words))
    answers(monkeypatch, {"docker": f"{engine.pid}\n"})
    (found,) = memory_of_ranks([status(1)])
    assert 64 * MIB < found.bytes < 512 * MIB
    answers(monkeypatch, {"docker": "0\n"})  # it has not started yet
    assert memory_of_ranks([status(1)]) == ()
    answers(monkeypatch, {})
    assert memory_of_ranks([status(1)]) == ()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((b"podman", b"run", b"--name", b"n", b"i"), ("podman", "n")),
        ((b"podman", b"run", b"i"), None),
        ((b"python3", b"--name", b"n"), None),
        ((b"",), None),
    ],
)
def test_the_name_of_a_container_is_in_its_command_line(words, found):
    assert container_of(words) == found
