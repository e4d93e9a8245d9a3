"""Tests of one group run in one worker of pytest: with pytest 9.2 and xdist 3.8 they are spread, and nothing fails.

See pytest-dev/pytest-xdist#1386. Each worker then trains the models and starts the fleets of the others once more.
"""

import subprocess
import sys

FILE = """
import pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.xdist_group("one")
def test_it(number, worker_id):
    with open({workers!r}, "a") as file:
        print(worker_id, file=file)
"""


def test_tests_of_a_group_run_in_one_worker(tmp_path):
    workers = tmp_path / "workers"
    (tmp_path / "test_group.py").write_text(FILE.format(workers=str(workers)))
    argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    done = subprocess.run([*argv, "test_group.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = workers.read_text().split()
    assert len(ran) == 6
    assert len(set(ran)) == 1
