from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pdpgd.evaluation import provenance


def test_the_processor_is_name_with_its_instructions_since_bits_depend_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    name = provenance.processor()
    assert name.endswith(f", {torch.backends.cpu.get_cpu_capability()}")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert provenance.processor() == f"{name}, oneDNN at most AVX2"


CPUINFO = """processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1

processor\t: 1
cpu family\t: 6
model name\t: another
"""


def test_the_model_of_the_processor_is_that_of_the_first_core(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    assert provenance._linux_processor(tmp_path / "cpuinfo") == "AMD EPYC (family 25, model 17, stepping 1)"


@pytest.mark.parametrize("content", [None, "", "processor\t: 0\nBogoMIPS\t: 50.00\n"])
def test_a_system_that_names_no_model_is_no_error(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "cpuinfo").write_text(content)
    assert provenance._linux_processor(tmp_path / "cpuinfo") is None


def test_every_start_has_the_processor_and_the_capability_of_torch() -> None:
    start = provenance.start()
    assert start["processor"] == provenance.processor_model() != ""
    assert start["capability"] == torch.backends.cpu.get_cpu_capability()
    assert provenance.processor().startswith(f"{start['processor']}, {start['capability']}")
