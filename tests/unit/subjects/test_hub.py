"""Weights on the Hugging Face hub, from a cache that the test fills."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdpgd.errors import InvalidInputError, SubjectError
from pdpgd.subjects.hub import weights_file
from support.hub import offline_hub, put


def test_a_path_is_a_path() -> None:
    assert weights_file("some/w.pt") == Path("some/w.pt")
    assert weights_file(Path("w.pt")) == Path("w.pt")


def test_a_file_of_the_hub_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline_hub(tmp_path, monkeypatch)
    put(tmp_path, "lab/nets", "deep/net.ckpt").write_bytes(b"weights")
    assert weights_file("hf:lab/nets/deep/net.ckpt").read_bytes() == b"weights"


def test_a_file_that_cannot_be_had_is_named_with_the_command_that_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline_hub(tmp_path, monkeypatch)
    with pytest.raises(SubjectError) as caught:
        weights_file("hf:lab/nets/deep/net.ckpt")
    assert "hf:lab/nets/deep/net.ckpt: expected a file in the cache of Hugging Face" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "`hf download lab/nets deep/net.ckpt`" in str(caught.value)


@pytest.mark.parametrize("source", ["hf:net.ckpt", "hf:lab/nets", "hf:lab/nets/", "hf:/nets/net.ckpt"])
def test_a_source_without_a_file_is_refused(source: str) -> None:
    with pytest.raises(InvalidInputError, match="expected hf:OWNER/REPOSITORY/FILE"):
        weights_file(source)
