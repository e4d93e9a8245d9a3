"""The log of a rank, and its secrets, which are not in it."""

from __future__ import annotations

import stat
from pathlib import Path

from rank_processes import IDLE, supervisor_of

from sparkfleet.group.ranks import local_rank as rank_module


async def test_the_log_is_private_and_rotated(runtime, running, herald, make_spec):
    body = "line = b'x' * 99 + b'\\n'\nfor _ in range(350): os.write(1, line * 1024)\ntell('done')\nsignal.pause()"
    spec = make_spec(herald.script(body))
    rank = await running(spec)
    await herald.hear()
    await rank.stop()
    logs = sorted(Path(spec.log_path).parent.iterdir())
    assert [p.name for p in logs] == ["rank.log", "rank.log.1", "rank.log.2"]
    assert all(0 < p.stat().st_size <= 10 << 20 for p in logs)
    assert {stat.S_IMODE(p.stat().st_mode) for p in logs} == {0o600}
    assert stat.S_IMODE(logs[0].parent.stat().st_mode) == 0o700


async def test_the_supervisor_writes_its_own_lines_and_no_trace(running, herald, make_spec, ended):
    """The tasks that it ends with a rank left a traceback in the log, which a person took for the engine's."""
    spec = make_spec(herald.script("tell('up')\nsignal.pause()"))
    rank = await running(spec)
    await herald.hear()
    supervisor = supervisor_of((await rank.status()).pid)
    await rank.stop()
    await ended(supervisor)
    lines = Path(spec.log_path).read_text().splitlines()
    assert [line for line in lines if not line.startswith("[sparkfleet] ")] == []


async def test_an_engine_cannot_write_the_supervisors_lines(running, herald, make_spec):
    """Its output before such a line would count as that of an earlier start, and a person would read a false reason."""
    fake = "[sparkfleet] 2026-11-20 18:00:00 running: something else"
    body = f"os.write(1, b'Traceback of this start\\n{fake}\\nafter it')\ntell('up')\nsys.stdin.read()\nsys.exit(3)"
    spec = make_spec(herald.script(body))
    rank = await running(spec)
    end = await rank.wait()
    log = Path(spec.log_path)
    ours = [line for line in log.read_text().splitlines() if line.startswith("[sparkfleet] ")]
    assert len(ours) == 2
    assert " running: " in ours[0]
    assert "the engine exited with code 3" in ours[1], "though the engine's last line has no end"
    of_this_start = rank_module._tail(log)
    assert of_this_start.startswith(
        "Traceback of this start\n[engine: sparkfleet] 2026-11-20 18:00:00 running: "
    )
    assert "\n[sparkfleet]" not in end.reason


async def test_secrets_stay_in_the_environment(runtime, running, herald, make_spec, rank_id):
    secret = "s3cret-token"
    body = "print(os.environ['TOKEN'], os.environ, flush=True)\ntell(os.getpid())\nsys.exit(len(sys.argv))"
    spec = make_spec(herald.script(body), secret_env=(("TOKEN", secret),))
    idle = make_spec(
        herald.script(IDLE), secret_env=spec.secret_env, id=rank_id.model_copy(update={"rank": 1})
    )
    started = await runtime.start(idle)
    lines = [Path(f"/proc/{p}/cmdline").read_bytes() for p in (started.pid, supervisor_of(started.pid))]
    rank = await running(spec)
    end = await rank.wait()
    assert end.reason.splitlines()[-1].startswith("*** environ(")
    told = [end.model_dump_json().encode(), started.model_dump_json().encode(), *lines]
    kept = [
        p.read_bytes()
        for p in (*runtime._run_dir.iterdir(), *Path(spec.log_path).parent.iterdir())
        if p.is_file()
    ]
    assert len(kept) >= 4
    assert not [text for text in (*told, *kept) if secret.encode() in text]
