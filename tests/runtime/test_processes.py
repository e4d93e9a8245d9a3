from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from sparkfleet.runtime import processes as processes_module
from sparkfleet.runtime.processes import (
    carries,
    descendants,
    freeze,
    is_stopped,
    kill_all,
    labelled,
    memory_bytes,
    process,
    processes,
    thaw,
    variable,
)

RUN = str(os.getpid())
"""In the environment of every child, so that no other run of these tests beside this one is taken for it."""


def mine(label):
    return {"LABEL": label, "RUN": RUN}


@contextmanager
def child(argv, **env):
    with subprocess.Popen(argv, env={"PATH": os.environ["PATH"], "RUN": RUN, **env}) as running:
        try:
            yield running
        finally:
            running.kill()


def test_reading_a_process():
    me = process(os.getpid())
    assert me
    assert (me.pid, me.parent, me.group, me.session) == (
        os.getpid(),
        os.getppid(),
        os.getpgrp(),
        os.getsid(0),
    )
    assert me in processes()
    assert "pytest" in me.command or "python" in me.command


def test_a_pid_that_nobody_has():
    assert process(0) is None
    assert process(1 << 30) is None
    assert variable(1 << 30, "PATH") is None


async def test_names_may_hold_anything(herald):
    body = "open('/proc/self/comm', 'w').write(') S 1 (')\ntell(os.getpid())\nsignal.pause()"
    with child(herald.script(body)) as running:
        await herald.hear()
        found = process(running.pid)
        assert (found.name, found.parent) == (") S 1 (", os.getpid())


async def test_a_zombie_is_not_alive(herald, ended):
    with child(herald.script("tell('bye')")) as running:
        await ended(running.pid)
        assert process(running.pid) is None


async def test_a_process_without_its_main_thread_is_alive(herald):
    body = (
        "import ctypes, threading\n"
        "threading.Thread(target=signal.pause).start()\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), tell('up'))).start()\n"
        "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)"
    )
    with child(herald.script(body)) as running:
        await herald.hear()
        assert process(running.pid)


async def test_labels_are_matched_whole(herald):
    with child(herald.script("tell('up')\nsignal.pause()"), LABEL="a/b", OTHER="x=y") as running:
        await herald.hear()
        assert carries(running.pid, {"LABEL": "a/b", "OTHER": "x=y"})
        assert variable(running.pid, "OTHER") == "x=y"
        assert variable(running.pid, "LABE") is None
        for wrong in ({"LABEL": "a/"}, {"LABEL": "a/b/"}, {"ABEL": "a/b"}, {"LABEL": "a/b", "NO": "1"}):
            assert not carries(running.pid, wrong)
        assert [p.pid for p in labelled({**mine("a/b"), "OTHER": "x=y"})] == [running.pid]


async def test_descendants(herald):
    body = "if os.fork() == 0:\n    os.setsid()\n    tell(os.getpid())\nsignal.pause()"
    with child(herald.script(body)) as running:
        grandchild = await herald.hear_pid()
        assert {p.pid for p in descendants(os.getpid(), processes())} >= {running.pid, grandchild}
        assert [p.pid for p in descendants(running.pid, processes())] == [grandchild]
        os.kill(grandchild, signal.SIGKILL)


async def test_memory_is_what_the_processes_hold(herald):
    size = 64 << 20
    with child(herald.script(f"kept = bytearray({size})\ntell('up')\nsignal.pause()")) as running:
        await herald.hear()
        found = process(running.pid)
        assert size < memory_bytes([found]) < size + (64 << 20)
    assert memory_bytes([found]) == 0


async def test_memory_falls_back_to_rss(herald, monkeypatch):
    monkeypatch.setattr(processes_module, "_pss", lambda _: 0)
    assert memory_bytes([process(os.getpid())]) > 1 << 20


async def test_sigterm_is_enough_for_the_willing(herald):
    body = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\ntell('up')\nsignal.pause()"
    with child(herald.script(body), LABEL="willing") as running:
        await herald.hear()
        killed = await kill_all(lambda: labelled(mine("willing")), grace_s=20)
        assert running.wait() == 7
    assert killed.survivors == ()
    assert killed.gone[0].startswith(f"pid {running.pid} ({sys.executable} -S -c")


async def test_the_stubborn_are_killed_after_the_grace(herald):
    with child(herald.script("stubborn()"), LABEL="stubborn") as running:
        await herald.hear()
        await kill_all(lambda: labelled(mine("stubborn")), grace_s=0.05)
        assert running.wait() == -signal.SIGKILL


async def test_no_grace_is_sigkill_at_once(herald):
    body = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\ntell('up')\nsignal.pause()"
    with child(herald.script(body), LABEL="none") as running:
        await herald.hear()
        await kill_all(lambda: labelled(mine("none")), grace_s=0)
        assert running.wait() == -signal.SIGKILL


async def test_what_is_born_meanwhile_is_found_too(herald, ended):
    body = (
        "def last(*_):\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    orphan(stubborn)\n    sys.exit()\n"
        "signal.signal(signal.SIGTERM, last)\ntell('up')\nsignal.pause()"
    )
    with child(herald.script(body), LABEL="late"):
        await herald.hear()
        killing = asyncio.create_task(kill_all(lambda: labelled(mine("late")), grace_s=1))
        late = await herald.hear_pid()
        assert len((await killing).gone) >= 2
    assert process(late) is None


async def test_frozen_processes_are_stopped_when_it_returns_and_go_on_after_it(herald):
    with child(herald.script("tell('up')\nsignal.pause()"), LABEL="frozen") as running:
        await herald.hear()
        for _ in range(20):
            await freeze(lambda: labelled(mine("frozen")))
            assert is_stopped(running.pid)
            await thaw(lambda: labelled(mine("frozen")))
            assert not is_stopped(running.pid)


async def test_this_process_is_never_killed():
    me = process(os.getpid())
    assert (await kill_all(lambda: [me], grace_s=0)).gone == ()


async def test_a_reused_pid_is_not_killed(herald):
    with child(herald.script("tell('up')\nsignal.pause()")) as running:
        await herald.hear()
        now = process(running.pid)
        before = processes_module.Process(
            now.pid, now.started - 1, now.parent, now.group, now.session, now.name
        )
        scans = iter([[before]])
        await kill_all(lambda: next(scans, []), grace_s=0)
        assert running.poll() is None


async def test_no_descriptor_is_lost_if_another_cannot_be_opened(monkeypatch):
    """A machine at its limit of open files, while a group is ended."""
    opened, open_pidfd = [], os.pidfd_open

    def limited(pid):
        if opened:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.append(open_pidfd(pid))
        return opened[0]

    monkeypatch.setattr(os, "pidfd_open", limited)
    me = process(os.getpid())
    with pytest.raises(OSError, match="Too many open files"):
        await processes_module.signal_all([me, me], signal.SIGCONT, wait_s=0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


async def test_what_does_not_die_is_reported(monkeypatch, herald):
    async def no_signal(*_, **__):
        await asyncio.sleep(0)

    monkeypatch.setattr(processes_module, "signal_all", no_signal)
    with child(herald.script("tell('up')\nsignal.pause()"), LABEL="immortal") as running:
        await herald.hear()
        killed = await kill_all(lambda: labelled(mine("immortal")), grace_s=0, patience_s=0.05)
    assert killed.gone == ()
    assert len(killed.survivors) == 1
    assert f"pid {running.pid} " in killed.survivors[0]


async def test_nothing_to_kill():
    assert await kill_all(list, grace_s=10) == processes_module.Killed()


async def test_a_title_does_not_wipe_the_labels(herald):
    """vLLM and SGLang set the titles of their workers; `clean_environment` sets the variable that saves the labels."""
    pytest.importorskip("setproctitle")
    body = "import setproctitle\nsetproctitle.setproctitle('VLLM::Worker')\ntell('up')\nsignal.pause()"
    _, _, *script = herald.script(body)
    for shield, found in (({"SPT_NOENV": "1"}, 1), ({}, 0)):
        with child((sys.executable, *script), LABEL="titled", **shield):
            await herald.hear()
            assert len(labelled(mine("titled"))) == found
