"""pdpgd report, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pdpgd.cli import main

RUN = ["mnist-1000", "--norm", "linf", "--norm", "l0", "--budget", "20", "--limit", "12", "--threads", "1", "--json"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, and a comparison in which an attack failed."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["/usr/bin/pdpgd", "evaluate", "mnist-plain", "--limit", "12", "a b"])
        assert main(["evaluate", "mnist-plain", *RUN, "--out", str(folder / "plain")]) == 0
        assert main(["evaluate", "mnist-linf-at", *RUN, "--out", str(folder / "robust")]) == 0
        patch.setitem(sys.modules, "foolbox", None)
        compared = ["compare", "mnist-plain", "mnist-1000", "--norm", "l2", "--attacks", "auto,pdpgd,ddn,fmn,cw"]
        assert main([*compared, *RUN[5:], "--out", str(folder / "compared")]) == 0
    return folder


def test_a_run_gets_its_page_beside_its_results(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs / "plain"), "--radius", "linf:16/255"]) == 0
    said = capsys.readouterr().out
    assert str(runs / "plain" / "report.html") in said
    page = (runs / "plain" / "report.html").read_text()
    for text in (
        "Robustness of mnist-plain on mnist-1000",
        "Half of the correctly classified images are fooled by a perturbation of size",
        "at 0.0627",
        "Reliability:",
        "pdpgd evaluate mnist-plain --limit 12 &#39;a b&#39;",
        "sha256",
        "data:image/png;base64,",
    ):
        assert text in page, text
    assert len(page) < 8e6


def test_two_runs_are_compared_side_by_side(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(runs / "plain"), str(runs / "robust"), "--gallery", "3"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "In linf, mnist-linf-at is more robust than mnist-plain:" in page
    assert "paired on the same 12 samples" in page
    assert page.count('class="card"') == 2 * 2 * 3


def test_the_same_run_twice_is_two_of_one_name(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "page.html"
    assert main(["report", str(runs / "plain"), str(runs / "plain"), "--out", str(out)]) == 0
    assert "no significant difference between mnist-plain (2) and mnist-plain" in out.read_text()


def test_a_comparison_has_its_statistics_and_says_what_failed(runs: Path) -> None:
    assert main(["report", str(runs / "compared"), "--title", "Four & more"]) == 0
    page = (runs / "compared" / "report.html").read_text()
    assert '<h1 id="headline-h">Four &amp; more</h1>' in page
    assert "cw (l2) failed: attack cw needs foolbox" in page
    assert "leaves the lowest robust accuracy" in page
    numbers = json.loads((runs / "compared" / "comparison.json").read_text())["l2"]
    for row in numbers["attacks"]:
        if row["failure"] is None:
            assert f'data-value="{row["mean_gap"]}"' in page, row["attack"]


def test_a_run_that_is_not_finished_is_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    (broken / "records").mkdir(parents=True)
    (broken / "spec.json").write_bytes((runs / "plain" / "spec.json").read_bytes())
    assert main(["report", str(broken)]) == 4
    assert "expected a finished run, got one where preflight is missing" in capsys.readouterr().err
    assert not (broken / "report.html").exists()


@pytest.mark.parametrize("source", ["plain", "compared"])
def test_a_report_never_loads_torch(source: str, runs: Path, tmp_path: Path) -> None:
    """In a fresh process, since the tests themselves load torch."""
    command = ["report", str(runs / source), "--out", str(tmp_path / "page.html")]
    program = (
        "import sys\nfrom pdpgd.cli import main\n"
        f"assert main({command!r}) == 0\n"
        "loaded = [name for name in sys.modules if name.split('.')[0] == 'torch']\n"
        "assert not loaded, loaded[:3]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").stat().st_size > 1e6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["{runs}/nowhere"], "nowhere: expected the directory of a run, a comparison or an experiment, got nothing"),
        (["{runs}"], "got one without spec.json, comparison.json or results.json"),
        (["{runs}/plain", "--radius", "l2:1"], "radii: expected norms of the report, linf, l0, got 'l2'"),
        (["{runs}/plain", "--radius", "linf"], "--radius: expected NORM:RADIUS such as linf:0.3"),
        (["{runs}/plain", "--radius", "linf:-1"], "radii: expected numbers above 0, got -1.0 for linf"),
        (["{runs}/plain", "--gallery", "-1"], "gallery: expected an integer of at least 0, got -1"),
        (["{runs}/plain", "--out", "{runs}"], "expected a file that can be written, got an error"),
        (["{runs}/plain", "--out", "{runs}/plain/spec.json/x.html"], "expected a file that can be written"),
    ],
)
def test_a_wrong_call_is_refused(
    options: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *(option.format(runs=runs) for option in options)]) == 2
    assert message in capsys.readouterr().err


def test_what_is_missing_is_said_with_how_to_get_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", str(runs / "plain")]) == 2
    assert "a report needs jinja2: pip install 'pdpgd[report]'" in capsys.readouterr().err
