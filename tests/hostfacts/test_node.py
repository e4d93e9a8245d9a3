import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import FactError
from sparkfleet.hostfacts.node import (
    Gpu,
    Processors,
    ReadEngines,
    ReadGpu,
    ReadInstalledEngines,
    ReadMemory,
    ReadProcessors,
    UnifiedMemory,
)

# The lines a DGX Spark (128 GB) prints first, as users have posted them; the rest of the file is of no interest here.
SPARK_MEMINFO = """MemTotal:       127535980 kB
MemFree:        84303312 kB
MemAvailable:   119406652 kB
Buffers:          229764 kB
SwapTotal:      16777212 kB
"""


def test_memory():
    assert ReadMemory.parse(SPARK_MEMINFO) == UnifiedMemory(
        total=127535980 * 1024, available=119406652 * 1024
    )


def test_a_kernel_without_memavailable_is_an_error_and_not_a_zero():
    with pytest.raises(FactError, match="MemAvailable"):
        ReadMemory.parse("MemTotal: 1 kB\n")


def test_processors():
    assert ReadProcessors.parse('[20, "aarch64"]\n') == Processors(count=20, machine="aarch64")


def test_gpu():
    assert ReadGpu.parse("NVIDIA GB10, 580.95.05\n") == Gpu(name="NVIDIA GB10", driver="580.95.05")
    assert ReadGpu.parse("") is None


def test_engines():
    assert ReadEngines.parse('{"vllm": "0.32.0+cpu"}') == {"vllm": "0.32.0+cpu"}


@pytest.mark.parametrize(
    ("torch", "version"), [("2.13.0+cpu", "0.5.23+cpu"), ("2.13.0+cu130", "0.5.23"), (None, "0.5.23")]
)
def test_sglang_is_a_cpu_build_if_its_torch_is(tmp_path, torch, version):
    """The distribution's version of torch may lack the mark; its `version.py` has it."""
    for name, number in (("sglang", "0.5.23"), ("torch", "2.13.0")):
        about = tmp_path / f"{name}-{number}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    (tmp_path / "torch").mkdir()
    if torch:
        (tmp_path / "torch" / "version.py").write_text(f"__version__ = '{torch}'\n")
    done = subprocess.run(
        [sys.executable, *(word for word in ReadEngines.argv[1:] if word != "-I")],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ReadEngines.parse(done.stdout)["sglang"] == version


CPU = "Available devices:\\n  (none)\\n"
GB10 = "Available devices:\\n  CUDA0: NVIDIA GB10 (124610 MiB, 120113 MiB free)\\n"


@pytest.mark.parametrize(
    ("version", "devices", "found"),
    [
        ("version: 0.6.0-dev (build 11434, commit 1a2b3c4)", GB10, {"llama.cpp": "b11434"}),
        ("version: 0.6.0-dev (build 11434, commit 1a2b3c4)", CPU, {"llama.cpp": "b11434+cpu"}),
        ("version: 7010 (1a2b3c4)", GB10, {"llama.cpp": "b7010"}),
        ("version: 0.6.0-dev (build 0, commit unknown)", CPU, {"llama.cpp": "0.6.0-dev+cpu"}),
        ("error while loading shared libraries: libcudart.so.13", "", {}),
    ],
)
def test_llama_cpp_is_a_program_beside_the_interpreter(tmp_path, version, devices, found):
    """Output of b11434, of a release before it had a version, of a build from sources without git, and a failure."""
    (tmp_path / "python").symlink_to(sys.executable)
    server = tmp_path / "llama-server"
    server.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}\\nbuilt with GNU" || printf "{devices}"\n'
    )
    server.chmod(0o755)
    done = subprocess.run(
        [str(tmp_path / "python"), "-S", *ReadEngines.argv[1:]], capture_output=True, text=True, check=True
    )
    assert ReadEngines.parse(done.stdout) == found


def run(argv, home):
    """Output of a fact's command on this machine, with another home."""
    env = {**os.environ, "HOME": str(home)}
    return subprocess.run(
        [sys.executable, *argv[1:]], env=env, capture_output=True, text=True, check=True
    ).stdout


def test_engines_of_the_newest_environment_that_was_installed(tmp_path):
    assert ReadInstalledEngines.parse(run(ReadInstalledEngines.argv, tmp_path)) == ("", {})
    for age, name in enumerate(("new", "old")):
        place = tmp_path / ".local/share/sparkfleet/env" / name
        (place / "bin").mkdir(parents=True)
        (place / "complete").touch()
        python = place / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        os.utime(place, (1e9 - age, 1e9 - age))
    found = ReadEngines.parse(run(ReadEngines.argv, tmp_path))
    newest = str(tmp_path / ".local/share/sparkfleet/env/new/bin/python")
    assert ReadInstalledEngines.parse(run(ReadInstalledEngines.argv, tmp_path)) == (newest, found)
    Path(newest).unlink()
    Path(newest).symlink_to("/usr/bin/python3.99")  # an upgrade of the system has removed it
    older = newest.replace("/new/", "/old/")
    assert ReadInstalledEngines.parse(run(ReadInstalledEngines.argv, tmp_path))[0] == older


def test_processors_of_this_machine(tmp_path):
    here = Processors(count=len(os.sched_getaffinity(0)), machine=platform.machine())
    assert ReadProcessors.parse(run(ReadProcessors.argv, tmp_path)) == here


@pytest.mark.parametrize("fact", [ReadProcessors, ReadEngines])
@pytest.mark.parametrize("output", ["", "Welcome to DGX OS!\n{}", "null", "7"])
def test_text_of_a_shell_profile_is_an_error_that_names_the_cause(fact, output):
    with pytest.raises(FactError, match="printed") as caught:
        fact.parse(output)
    assert "profile" in caught.value.do


@given(st.text())
def test_any_output_is_a_value_or_a_fact_error(output):
    for fact in (ReadMemory, ReadProcessors, ReadGpu, ReadEngines):
        try:
            fact.parse(output)
        except FactError:
            continue
