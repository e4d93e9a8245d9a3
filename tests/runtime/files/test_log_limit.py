"""Logs that somebody appends to, limited from outside."""

import subprocess
import sys

from sparkfleet.runtime.files.log_limit import limit

WRITES = "import sys\nfor line in sys.stdin: print('x' * 99, flush=True)"


def test_a_log_above_its_limit_is_emptied_and_its_writer_goes_on(tmp_path):
    log = tmp_path / "ray.log"
    with log.open("ab") as output:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITES], stdin=subprocess.PIPE, stdout=output, text=True, bufsize=1
        )
    for _ in range(50):
        writer.stdin.write("one\n")
    for _ in range(200):
        if log.stat().st_size == 5000:
            break
        subprocess.run(["sleep", "0.05"], check=True)
    assert limit([log], 3000) == (log,)
    assert (log.stat().st_size, (tmp_path / "ray.log.1").stat().st_size) == (0, 3000)
    writer.stdin.write("one\n")
    writer.stdin.close()
    assert writer.wait(10) == 0
    assert log.read_text() == "x" * 99 + "\n", "no hole where the old lines were"
    assert limit([log], 3000) == ()


def test_a_missing_log_is_no_trouble(tmp_path):
    assert limit([tmp_path / "none"]) == ()


def test_the_older_file_is_replaced(tmp_path):
    log = tmp_path / "boot.log"
    (tmp_path / "boot.log.1").write_text("old")
    log.write_text("n" * 20)
    assert limit([log], 10) == (log,)
    assert (tmp_path / "boot.log.1").read_text() == "n" * 10
    assert (tmp_path / "boot.log.1").stat().st_mode & 0o777 == 0o600
