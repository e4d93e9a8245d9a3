"""Numbers of the knowledge: packaged files load and agree with each other, and damage is reported with the file's name."""

from __future__ import annotations

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.knowledge.ceilings import PHYSICS, physics
from sparkfleet.knowledge.data_file import DataFile
from sparkfleet.knowledge.hardware import hardware
from sparkfleet.knowledge.measurements import SIBLINGS, architectures, siblings
from sparkfleet.knowledge.published.factors import FACTORS, factors
from sparkfleet.values import Value


def test_factors_are_counted_and_finite() -> None:
    known = factors()
    assert all(value > 0 for by in known.coefficients.values() for value in by.values())
    for effects in (*known.effects.values(), known.acceptance):
        assert effects
        assert all(
            effect.n >= 1 and effect.spread >= 0 and abs(effect.log) < 3 for effect in effects.values()
        )


def test_no_factor_is_about_an_author() -> None:
    keys = [key for effects in factors().effects.values() for key in effects]
    assert not [key for key in keys if key.startswith(("source=", "run="))]


def test_bands_widen_with_speculation() -> None:
    bands = factors().bands
    assert bands["decode/spec/known"] > bands["decode/none/known"]
    assert all(0.05 < half < 2 for half in bands.values())


def test_ceilings_are_those_of_the_hardware_file() -> None:
    ours, measured = physics().ceilings, hardware().ceilings
    for name in ("read_gb_per_s", "bf16_tflops", "fp8_tflops", "fp4_tflops"):
        known = getattr(measured, name)
        assert known.low <= getattr(ours, name) <= known.high


def test_formats_never_grow_a_model() -> None:
    for name, form in physics().formats.items():
        assert all(0 < bits <= 16 for bits in form.bits.values()), name
        assert physics().ceilings.flops(form.compute) > 0


def test_siblings_point_at_architectures() -> None:
    known = architectures()
    assert [shapes for _, shapes in siblings() if shapes not in known] == []


@pytest.mark.parametrize("file", [FACTORS, PHYSICS, SIBLINGS], ids=lambda file: file.name)
def test_a_damaged_file_is_named(file: DataFile[Value]) -> None:
    with pytest.raises(SpecError, match=f"{file.name}:"):
        file.read("version: [1")
    with pytest.raises(SpecError, match=f"{file.name}: odd: "):
        file.read(f"{file.text}\nodd: 1")
