"""Starts the gateways that are compared, each with its own processes, and reads their processor time."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paced.client import Side

START_S = 180.0
END_S = 40.0
_CONNECTIONS = 4096
_PID, _PARENT, _SESSION, _USER, _SYSTEM = 0, 2, 4, 12, 13
"""Fields of `/proc/PID/stat`, without the name."""


class NotHere(Exception):
    """A contender that cannot be measured, and the reason."""


@dataclass
class Contender:
    """A way to the engine."""

    name: str
    side: Side
    process: subprocess.Popen[bytes] | None = None
    """Leader of its session; None for the bare engine."""
    serving: int | None = None
    """Process that serves requests, if the session also has others; those that it starts are its own."""

    def cpu_s(self) -> float:
        """User and system time of its processes so far."""
        if self.process is None:
            return 0.0
        session, serving = str(self.process.pid), str(self.serving)
        if self.serving is None:
            return _cpu_s(lambda fields: fields[_SESSION] == session)
        return _cpu_s(lambda fields: serving in (fields[_PID], fields[_PARENT]))

    def end(self) -> None:
        """Ends its processes. One with a `serving` process ends the others itself."""
        if self.process is not None:
            if self.serving is None:
                os.killpg(self.process.pid, signal.SIGTERM)
            else:
                self.process.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def _cpu_s(chosen: Callable[[Sequence[str]], bool]) -> float:
    """Of the processes whose fields of `/proc/PID/stat` are chosen."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = stat.read_text().partition(" ")
        except OSError:
            continue  # it has ended
        fields = [pid, *rest.rpartition(")")[2].split()]
        if chosen(fields):
            ticks += int(fields[_USER]) + int(fields[_SYSTEM])
    return ticks / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _start(name: str, argv: list[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            argv, stdout=out, stderr=out, start_new_session=True, env=os.environ | environment
        )


def _await(contender: Contender, log: Path) -> Contender:
    """Waits until it serves one request."""
    assert contender.process is not None
    until, why = time.monotonic() + START_S, ""
    while time.monotonic() < until and contender.process.poll() is None:
        try:
            _ask_once(contender.side)
            return contender
        except (OSError, urllib.error.URLError) as error:
            why = str(error)
            time.sleep(0.2)
    contender.end()
    lines = log.read_text(errors="replace").strip().splitlines()
    raise NotHere(f"does not serve: {why}; its last line: {lines[-1] if lines else 'none'}")


def _ask_once(side: Side) -> None:
    head, _, body = side.request(stream=False, tokens=1).partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    request = urllib.request.Request(side.url + "/v1/chat/completions", body, fields)
    with urllib.request.urlopen(request, timeout=5) as answer:
        answer.read()


def _program(name: str, given: str) -> str:
    found = shutil.which(given or name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise NotHere(f"no program {given or name}: install it, or name it with --{name} PATH")
    return found


def nginx(engines: Sequence[str], folder: Path, given: str, *, balance: str = "") -> Contender:
    """nginx as a reverse proxy: one worker, kept connections, no buffering, no key checked.

    Args:
        engines: their URLs.
        folder: for its files.
        given: its program; "": the one on the path.
        balance: its directive for the choice of an engine; "": in turn.
    """
    program, port = _program("nginx", given), _free_port()
    config = folder / "nginx.conf"
    servers = " ".join(f"server {one.removeprefix('http://')};" for one in engines)
    config.write_text(
        f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
worker_rlimit_nofile 65536;
events {{ worker_connections {4 * _CONNECTIONS}; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000; client_body_buffer_size 1m; client_max_body_size 64m;
  upstream engine {{ {balance} {servers} keepalive {_CONNECTIONS}; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600;
    }}
  }}
}}
"""
    )
    log = folder / "nginx.log"
    argv = [program, "-e", str(folder / "error.log"), "-p", str(folder), "-c", str(config)]
    process = _start("nginx", argv, log)
    return _await(Contender("nginx", Side(f"http://127.0.0.1:{port}"), process), log)


def vllm_router(
    engines: Sequence[str], folder: Path, given: str, *, policy: str = "round_robin"
) -> Contender:
    """vLLM's router (Rust), by default in its fastest configuration: no key checked, no prefix tree."""
    program, port = _program("vllm-router", given), _free_port()
    log = folder / "vllm-router.log"
    argv = [program, "--worker-urls", *engines, "--host", "127.0.0.1", "--port", str(port)]
    argv += [
        "--policy",
        policy,
        "--max-concurrent-requests",
        str(_CONNECTIONS),
        "--log-level",
        "error",
    ]
    argv += ["--prometheus-port", str(_free_port())]
    process = _start("vllm-router", argv, log)
    return _await(Contender("vllm-router", Side(f"http://127.0.0.1:{port}"), process), log)


def litellm(engines: Sequence[str], folder: Path, given: str) -> Contender:
    """LiteLLM's proxy with one worker and its master key."""
    program, port = _program("litellm", given), _free_port()
    config = folder / "litellm.yaml"
    models = "".join(
        f"""  - model_name: fake
    litellm_params: {{model: openai/fake, api_base: "{one}/v1", api_key: none}}
"""
        for one in engines
    )
    config.write_text(
        f"""model_list:
{models}general_settings: {{master_key: sk-bench}}
litellm_settings: {{telemetry: false}}
"""
    )
    log = folder / "litellm.log"
    argv = [
        program,
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    process = _start("litellm", argv, log, **quiet)
    return _await(Contender("litellm", Side(f"http://127.0.0.1:{port}", "sk-bench"), process), log)


def ours(engine: str, folder: Path, key: str, sha256: str) -> Contender:
    """The fleet's own gateway, `paced/gateway_replica.py`: keys are checked, usage is counted, Ray Serve lists the engine.

    Args:
        engine: its URL.
        folder: for its files.
        key, sha256: its only API key, and the digest of that.
    """
    port, note = _free_port(), folder / "sparkfleet.pid"
    argv = [sys.executable, "-m", "paced.gateway_replica", engine, str(port), sha256, str(note)]
    found = _ours(argv, port, folder, key)
    while not note.exists():  # it answers a moment before
        time.sleep(0.1)
    return replace(found, serving=int(note.read_text()))


def ours_alone(engines: str, folder: Path, script: str, key: str, sha256: str) -> Contender:
    """sparkfleet's gateway without Ray Serve, with given speeds of its engines.

    Args:
        engines: for the program, which knows their form.
        folder: for its log.
        script: the program that runs the gateway with `--run-gateway`.
        key, sha256: its only API key, and the digest of that.
    """
    port = _free_port()
    argv = [sys.executable, script, "--run-gateway", engines, "--port", str(port), "--key", sha256]
    return _ours(argv, port, folder, key)


def _ours(argv: list[str], port: int, folder: Path, key: str) -> Contender:
    log, here = folder / "sparkfleet.log", str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    process = _start("sparkfleet", argv, log, PYTHONPATH=path)
    return _await(Contender("sparkfleet", Side(f"http://127.0.0.1:{port}", key), process), log)


Start = Callable[[Sequence[str], Path, str], Contender]
OTHERS: dict[str, Start] = {"nginx": nginx, "vllm-router": vllm_router, "litellm": litellm}
