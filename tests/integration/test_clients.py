"""Client libraries that are not the project's own dependencies, against real vLLM through the real gateway.

LangChain, LiteLLM and `llm` from PyPI; OpenAI's, Anthropic's and Vercel's (OpenCode's) from npm. Each is installed in an
environment of its own, which later runs use again. Every answer is greedy, so all of them are equal.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from live_fleet import TINY

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(900)]

HERE = Path(__file__).parent / "clients"
PYTHON = ("langchain-openai==1.7.4", "litellm==1.110.2", "llm==0.36")
NPM = {
    "openai": "6.49.0",
    "@anthropic-ai/sdk": "1.14.0",
    "ai": "6.0.326",
    "@ai-sdk/openai-compatible": "2.0.92",
}
QUESTION = "What is a rail?"


@pytest.fixture(scope="module", autouse=True)
def _serving(fleet):
    """`tiny` on real vLLM."""
    fleet.apply(fleet.write("tiny.yaml", TINY))
    fleet.until(lambda: fleet.deployment()["state"] == "ready" and len(fleet.deployment()["groups"]) == 1)


def run(argv, **options):
    """Standard output of a program that must end with 0."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False, **options)
    assert done.returncode == 0, f"{argv[:3]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def installed(packages, install):
    """A directory with these packages: made once, by their names and versions."""
    mark = hashlib.sha256(repr((packages, sys.version_info[:2])).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkfleet" / "test-clients"
    place = cache / mark
    if not place.exists():
        part = cache / f"{mark}.{os.getpid()}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        install(part)
        part.rename(place)
    return place


def npm_install(place):
    """The npm clients, without running their scripts."""
    npm = shutil.which("npm")
    assert npm, "apt-get install npm"
    (place / "package.json").write_text(json.dumps({"private": True, "dependencies": NPM}))
    run([npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"], cwd=place)


def pip_install(place):
    """The clients from PyPI, as a directory of packages: an environment cannot be moved."""
    run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), *PYTHON])


@pytest.fixture(scope="module")
def environment(fleet):
    """The key, and no client's own settings or telemetry."""
    home = fleet.directory / "clients-home"
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "SPARKFLEET_API_KEY": fleet.key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        "AI_SDK_LOG_WARNINGS": "false",
    }


@pytest.fixture(scope="module")
def packages(environment):
    """The environment of programs that use the clients from PyPI."""
    return environment | {"PYTHONPATH": str(installed(PYTHON, pip_install))}


@pytest.fixture(scope="module")
def answer(fleet):
    """The answer that plain HTTP gets."""
    return fleet.chat(QUESTION)


def test_clients_from_npm(fleet, environment, answer):
    place = installed(sorted(NPM.items()), npm_install)
    program = place / "clients.mjs"  # beside what it imports
    shutil.copy(HERE / "clients.mjs", program)
    found = json.loads(run(["node", program, fleet.endpoint, "tiny", QUESTION], env=environment))
    for name in ("chat", "stream", "response", "message", "events", "generated", "streamed"):
        assert found.pop(name).strip() == answer.strip(), name
    assert found.pop("models") == ["tiny"]
    assert found.pop("tokens") > 1
    assert found == {"refused": [404, "model_not_found"], "forbidden": [401, "authentication_error"]}


def test_langchain_and_litellm(fleet, packages, answer):
    program = HERE / "python_clients.py"
    lines = run([sys.executable, program, fleet.endpoint, "tiny", QUESTION], env=packages).splitlines()
    found = json.loads(lines[-1])  # LiteLLM prints advice before it
    for name in ("langchain", "langchain_stream", "litellm", "litellm_stream"):
        assert found.pop(name).strip() == answer.strip(), name
    assert [one.strip() for one in found.pop("langchain_batch")] == [answer.strip()] * 4
    status, words = found.pop("langchain_embeddings")
    assert (status, "makes no embeddings" in words) == (404, True), words
    status, words = found.pop("litellm_refused")
    assert (status, "nothing" in words) == (404, True), words
    tools = found.pop("langchain_tools")
    assert tools is None or (tools[0] == 400 and "tool" in tools[1]), tools
    assert found == {}


def test_what_connect_prints_for_langchain_runs_as_it_is(fleet, packages, tmp_path):
    program = tmp_path / "hello.py"
    program.write_text(fleet.ok("connect", "langchain", "tiny"))
    assert run([sys.executable, program], env=packages).strip()


def test_what_connect_prints_for_llm_is_its_configuration(fleet, packages, answer, tmp_path):
    (tmp_path / "extra-openai-models.yaml").write_text(fleet.ok("connect", "llm", "tiny"))
    env = packages | {"LLM_USER_PATH": str(tmp_path)}
    llm = [sys.executable, "-m", "llm"]
    run([*llm, "keys", "set", "sparkfleet", "--value", fleet.key], env=env)
    said = run([*llm, "-m", "tiny", "-o", "temperature", "0", "-o", "max_tokens", "60", QUESTION], env=env)
    assert said.strip() == answer.strip()
