from __future__ import annotations

import pytest
import torch

from pdpgd.evaluation import provenance


def test_the_processor_is_told_with_its_instructions_since_bits_depend_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    told = provenance.processor()
    assert told.endswith(f", {torch.backends.cpu.get_cpu_capability()}")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert provenance.processor() == f"{told}, oneDNN at most AVX2"
