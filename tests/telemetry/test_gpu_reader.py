"""The GPU of a node that is read again and again, with programs in place of `nvidia-smi`."""

import os

import pytest

from sparkfleet.telemetry import local_command
from sparkfleet.telemetry.gpu_reader import GpuReader

SOUND = (
    "echo 'NVIDIA GB10, 580.159.03, 0000000F:01:00.0, 12.1, P0, 60, 40, 96, 2400, 3003, 0x0000000000000000'"
)
LOST = "echo 'Unable to determine the device handle for GPU0000000F:01:00.0: Unknown Error'; exit 15"
NO_DRIVER = "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9"
NONE = "echo 'No devices were found'"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts a program in the place of `nvidia-smi`."""
    path = tmp_path / "bin" / "nvidia-smi"
    path.parent.mkdir()
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    def put(script):
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return put


def device(root, vendor, kind):
    """A device on the PCI bus."""
    place = root / "sys/bus/pci/devices/000f:01:00.0"
    place.mkdir(parents=True)
    (place / "vendor").write_text(f"{vendor}\n")
    (place / "class").write_text(f"{kind}\n")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (LOST, "The driver has lost the GPU"),
        (NONE, "nvidia-smi finds no GPU"),
        (NO_DRIVER, "`nvidia-smi` failed with exit code 9"),
    ],
)
def test_a_gpu_that_was_read_and_is_gone_is_a_trouble_until_it_is_back(smi, tmp_path, fault, words):
    reader = GpuReader(tmp_path)
    smi(SOUND)
    assert [gpu.name for gpu in reader.read().gpus] == ["NVIDIA GB10"]
    smi(fault)
    assert words in reader.read().trouble
    smi(SOUND)
    assert reader.read().trouble == ""


def test_one_that_hangs_is_a_trouble_from_the_second_reading_on(smi, tmp_path, monkeypatch):
    """A loaded node answers one late now and then, which is no fault."""
    monkeypatch.setattr(local_command, "COMMAND_S", 0.2)
    monkeypatch.setattr(local_command.run_here, "__defaults__", (0.2,))
    reader = GpuReader(tmp_path)
    smi(SOUND)
    reader.read()
    smi("exec sleep 30")
    assert [reader.read().trouble for _ in range(2)] == [
        "",
        "nvidia-smi does not end within 5 s: the GPU's driver hangs.",
    ]
    smi(SOUND)
    assert reader.read().trouble == ""


@pytest.mark.parametrize(("kind", "is_missed"), [("0x030200", True), ("0x020000", False)])
def test_one_that_was_never_read_is_missed_if_the_bus_has_it(smi, tmp_path, kind, is_missed):
    device(tmp_path, "0x10de", kind)
    smi(NO_DRIVER)
    assert bool(GpuReader(tmp_path).read().trouble) == is_missed


@pytest.mark.parametrize("answer", [NO_DRIVER, NONE])
def test_a_machine_without_a_gpu_misses_none(smi, tmp_path, answer):
    device(tmp_path, "0x8086", "0x030000")
    smi(answer)
    assert GpuReader(tmp_path).read().trouble == ""


def test_a_machine_without_nvidia_smi_misses_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert GpuReader(tmp_path).read() == (None, "")
