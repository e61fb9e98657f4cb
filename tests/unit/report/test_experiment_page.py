from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pdpgd import evaluate, write_report
from pdpgd.errors import InvalidInputError
from pdpgd.experiments.results import Cell, DatasetInfo, ModelInfo, Results
from pdpgd.report.experiment import effects_section, provenance_of_experiment, sentences
from pdpgd.report.inputs import inputs_of
from pdpgd.runs import metrics
from support.evil import EVIL
from support.models import TinyConv

RADII = (0.05, 0.2, 0.5)


def cell(attack: str, shares: tuple[float, ...], *, id: str = "", failure: str | None = None) -> Cell:
    return Cell(
        id=id,
        role="table",
        dataset="mine",
        model="plain",
        norm="l2",
        attack=attack,
        restarts=None,
        settings={},
        budget=20,
        radii=RADII,
        failure=failure,
        samples=8,
        right=8,
        robust_accuracy=shares,
    )


def results(*cells: Cell) -> Results:
    model = ModelInfo(source="TinyConv", like=None, clean_accuracy=1.0)
    info = DatasetInfo(name="mine", source="random", like=None, samples=8, models={"plain": model})
    return Results(
        title=f"Mine {EVIL}",
        about="A small one.",
        norms=("l2",),
        datasets=(info,),
        cells=cells,
        made_with={"torch": "2"},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two attacks whose runs are there, and one that failed."""
    place = tmp_path_factory.mktemp("experiment")
    generator = torch.Generator().manual_seed(2)
    model = TinyConv(generator)
    images = torch.rand(8, 3, 6, 6, generator=generator)
    data = (images, model(images).argmax(1))
    cells = []
    for attack in ("auto", "fmn"):
        out = place / "jobs" / f"id-{attack}"
        run = evaluate(model, data, norms=["l2"], attack=attack, budget=20, checks=False, threads=1, out=out)
        shares = tuple(metrics.robust_accuracy(run.own_distances("l2"), radius) for radius in RADII)
        cells.append(cell(attack, shares, id=out.name))
    cells.append(cell("cw", (), failure="needs foolbox"))
    (place / "results.json").write_text(results(*cells).to_json())
    return place


def test_models_of_one_source_are_distinguished_by_their_weights_and_pool(folder: Path) -> None:
    inputs = inputs_of(folder)
    assert inputs.experiment is not None
    named = ModelInfo(
        source="timm:resnet50", like=None, clean_accuracy=1.0, weights="l2.pt", pool="restricted-imagenet"
    )
    models = {**inputs.experiment.datasets[0].models, "l2-at": named}
    datasets = (replace(inputs.experiment.datasets[0], models=models),)
    facts = dict(
        provenance_of_experiment(replace(inputs, experiment=replace(inputs.experiment, datasets=datasets))).facts
    )
    assert facts["mine"] == (
        "8 samples of random; plain (TinyConv), l2-at (timm:resnet50 with l2.pt pooled over restricted-imagenet)"
    )


def test_an_experiment_has_its_summary_its_tables_and_the_curves_of_its_runs(folder: Path) -> None:
    page = write_report(folder).read_text()
    assert (folder / "report.html").exists()
    assert EVIL not in page
    assert "leaves the lowest robust accuracy" in page
    assert 'id="curve-0-l2"' in page
    assert 'data-ending="tex"' in page
    assert "\\\\begin{table" in page, "the LaTeX to save"
    assert "mine plain, cw (l2): needs foolbox" in page
    assert 'class="card"' in page
    assert "The results were computed from Python" in page


def test_the_pictures_are_of_our_attack(folder: Path) -> None:
    (model,) = inputs_of(folder).models
    assert [series.label for series in model.series] == ["auto", "fmn"]
    assert model.pictured("l2").label == "auto"
    assert replace(model, preferred=("fmn",)).pictured("l2").label == "fmn"


def test_without_its_runs_an_experiment_still_has_its_tables(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "results.json", tmp_path)
    page = write_report(tmp_path).read_text()
    assert "2 of the 3 runs of this experiment are not in its directory" in page
    assert "1 failed" in page
    assert "leaves the lowest robust accuracy" in page
    assert 'id="curve-0-l2"' not in page
    assert 'href="#reliability"' not in page
    assert 'href="#gallery"' not in page
    assert "computed from Python" not in page


def test_a_run_that_does_not_read_is_said_to_have_failed(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "jobs" / "id-fmn" / "spec.json").write_text("{")
    page = write_report(broken).read_text()
    assert "2 failed" in page
    assert "mine plain, fmn (l2): its run cannot be shown" in page
    assert "are not in its directory" not in page


def test_attacks_whose_shares_read_the_same_share_the_first_place() -> None:
    auto, fmn, pgd = (0.5, 0.25, 0.0), (0.5, 0.2501, 0.0), (0.75, 0.5, 0.25)
    (alone,) = sentences(results(cell("auto", auto), cell("pgd", pgd)))
    assert alone == (
        "mine, l2: auto leaves the lowest robust accuracy, 25.0% on average over 1 model, best in 3 of 3 cells; "
        "pgd follows with 50.0%."
    )
    (shared,) = sentences(results(cell("auto", auto), cell("fmn", fmn), cell("pgd", pgd)))
    assert "auto and fmn leave the lowest robust accuracy, 25.0% on" in shared
    assert "best in 3 and 2 of 3 cells; pgd follows with 50.0%" in shared
    (all_of_them,) = sentences(results(cell("auto", auto), cell("fmn", auto)))
    assert all_of_them.endswith("best in 3 and 3 of 3 cells.")


def test_an_experiment_stands_alone(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="expected runs or comparisons, or one experiment alone, got 2"):
        inputs_of([folder, folder])


def test_restarts_and_gradients_are_drawn_if_the_experiment_has_them() -> None:
    table = cell("pdpgd", (0.5, 0.25, 0.0))
    assert effects_section(results(table)) is None
    few, many = (replace(table, role="restarts", restarts=count, fooled=8, mean_distance=2 / count) for count in (1, 4))
    asked = replace(table, role="queries", gradients=10, penalty=1.0)
    section = effects_section(results(table, few, many, asked))
    assert section is not None
    restarts, queries = (part.figures for part in section.parts)
    (line,) = restarts[0].chart["data"]
    assert (line["x"], line["y"]) == ([1.0, 4.0], [2.0, 0.5])
    assert queries[0].chart["data"][0]["y"] == [25.0]
    assert "C = 1: 25" in queries[0].description


def partly_fooled(**other: object) -> list[Cell]:
    """More restarts fool more samples, and the mean over these rises."""
    first = replace(cell("fab", (0.5, 0.25, 0.0)), role="restarts")
    counts = ((1, 4, 1.0, 0.5), (4, 6, 2.0, 0.25))
    return [
        replace(first, restarts=n, fooled=f, mean_distance=own, **{"common": 4, "common_mean": mean, **other})  # type: ignore[arg-type]
        for n, f, own, mean in counts
    ]


def test_the_mean_over_restarts_is_over_the_samples_that_all_runs_fooled_and_says_so() -> None:
    section = effects_section(results(*partly_fooled()))
    assert section is not None
    assert "Open marker: the run did not fool every" in section.lead
    (figure,) = section.parts[0].figures
    (line,) = figure.chart["data"]
    assert line["y"] == [0.5, 0.25]
    assert line["marker"]["symbol"] == ["circle-open"] * 2
    assert figure.description == "With 4 restarts, FAB: 0.25. Over the 4 of 8 samples that every run fooled."


def test_means_over_other_samples_are_not_joined_by_a_line() -> None:
    section = effects_section(results(*partly_fooled(common=None, common_mean=None)))
    assert section is not None
    assert "not comparable with the others" in section.lead
    (figure,) = section.parts[0].figures
    (alone,) = figure.chart["data"]
    assert (alone["mode"], alone["text"], alone["showlegend"]) == ("markers+text", ["4 of 8", "6 of 8"], True)
    assert figure.description == "With 4 restarts, FAB: 2 (over 6 of 8)."


def test_runs_without_a_sample_in_common_have_no_chart() -> None:
    section = effects_section(results(*partly_fooled(common=0, common_mean=None)))
    assert section is not None
    (figure,) = section.parts[0].figures
    assert figure.chart is None
    assert figure.description == "No sample was fooled by all runs."
