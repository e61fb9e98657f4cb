"""The figures of results that are known by hand."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import pdpgd
from pdpgd.errors import UnknownNameError
from pdpgd.experiments.results import Cell, Results
from pdpgd.report.examples_figure import draw_examples, shown_attack
from pdpgd.report.figures import draw_queries, draw_restarts, write_figures
from support.experiments import KINDS, cell, dataset_info, failed, query_cells, restart_cells, results_of, table_cells

NORMS = ("linf", "l2")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    """With runs of twelve images, in two norms on two nets, so short that some images are not fooled."""
    folder = tmp_path_factory.mktemp("experiment")
    cells = [cell("auto", None, norm, kind) for kind in KINDS[:2] for norm in NORMS]
    for each in cells:
        pdpgd.evaluate(
            f"mnist-{each.model}",
            "mnist-1000",
            norms=(each.norm,),
            attack="auto",
            budget=6,
            limit=12,
            checks=False,
            threads=1,
            out=folder / "jobs" / each.id,
        )
    return results_of(*cells, norms=NORMS), folder


def drawn_text(svg: bytes) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_lines_are_svg_with_text_that_is_text_and_the_same_each_time(tmp_path: Path) -> None:
    results = results_of(*restart_cells(), *query_cells())
    files = write_figures(results, tmp_path / "one")
    assert [path.name for path in files] == ["restarts-mnist.svg", "queries-mnist.svg"]
    for path, again in zip(files, write_figures(results, tmp_path / "two"), strict=True):
        content = path.read_bytes()
        assert content == again.read_bytes()
        assert len(content) < 200_000
        assert {"plain", "linf-at", "l2-at"} <= set(drawn_text(content))
    assert {"PDPGD (ours)", "FAB", "restarts", "100"} <= set(drawn_text(files[0].read_bytes()))
    legend = {"PGD", "PDPGD (ours), C = 0.1", "PDPGD (ours), C = 1", "PDPGD (ours), C = 10"}
    assert legend <= set(drawn_text(files[1].read_bytes()))


def test_a_panel_for_each_norm_and_model_with_each_attacks_points() -> None:
    figure = draw_restarts(results_of(*restart_cells()), "mnist")
    assert len(figure.axes) == 9
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert lines["FAB"].get_xdata().tolist() == [1, 3, 10, 30, 100]
    assert lines["FAB"].get_ydata().tolist() == pytest.approx([1.3 * n**-0.1 for n in (1, 3, 10, 30, 100)])
    colors = {line.get_color() for line in lines.values()}
    markers = {line.get_marker() for line in lines.values()}
    assert len(colors) == len(markers) == 2


def test_queries_are_drawn_as_the_mean_over_the_radii() -> None:
    cells = [
        cell("pgd", None, "l2", "plain", role="queries", gradients=n, robust_accuracy=(0.5, 0.4, 0.3, 0.2, 0.1))
        for n in (100, 10)
    ]
    (axes,) = draw_queries(results_of(*cells), "mnist").axes
    (line,) = axes.get_lines()
    assert line.get_xdata().tolist() == [10, 100]
    assert line.get_ydata().tolist() == pytest.approx([30, 30])


def test_a_panel_without_results_says_so_and_a_figure_without_any_is_left_out(tmp_path: Path) -> None:
    cells = [each for each in restart_cells() if (each.norm, each.model) != ("l2", "plain")]
    figure = draw_restarts(results_of(*cells), "mnist")
    assert [text.get_text() for text in figure.axes[3].texts] == ["no results"]
    broken = [failed("pdpgd", 1, "l2", "plain", "no memory", role="restarts")]
    assert draw_restarts(results_of(*broken), "mnist") is None
    assert write_figures(results_of(*table_cells(), *broken), tmp_path) == []
    assert not (tmp_path / "figures").exists()


def partial_cells() -> list[Cell]:
    """FAB fools more samples with more restarts, and its mean over them rises; PDPGD fools all."""
    fab = zip((1, 3, 10), (40, 60, 80), (1.0, 1.4, 1.8), (1.0, 0.9, 0.8), strict=True)
    return [
        *(
            cell("pdpgd", n, "l1", "plain", role="restarts", mean_distance=2.0 / n, common=40, common_mean=0.5 / n)
            for n in (1, 3, 10)
        ),
        *(
            cell("fab", n, "l1", "plain", role="restarts", fooled=f, mean_distance=own, common=40, common_mean=mean)
            for n, f, own, mean in fab
        ),
    ]


def texts_of(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_a_curve_does_not_rise_because_more_samples_are_fooled() -> None:
    """It is over the samples that all runs of the panel fooled, which the panel says."""
    figure = draw_restarts(results_of(*partial_cells()), "mnist")
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["FAB"].get_ydata().tolist() == [1.0, 0.9, 0.8]
    assert lines["PDPGD (ours)"].get_ydata().tolist() == pytest.approx([0.5, 0.5 / 3, 0.05])
    assert texts_of(axes) == ["40 of 98 samples"]
    assert "every run of the panel fooled" in figure.get_supxlabel()


def test_runs_that_did_not_fool_all_have_open_markers() -> None:
    (axes,) = draw_restarts(results_of(*partial_cells()), "mnist").axes
    (opened,) = [line for line in axes.get_lines() if line.get_markerfacecolor() == "white"]
    assert opened.get_label() == "_FAB, open"
    assert opened.get_xdata().tolist() == [1, 3, 10]
    assert opened.get_linestyle() == "None"


def test_means_over_other_samples_stand_alone_where_the_common_ones_are_not_known() -> None:
    """As in results that were written before they were counted."""
    cells = [replace(each, common=None, common_mean=None) for each in partial_cells()]
    cells.append(cell("fab", 100, "l1", "plain", role="restarts", mean_distance=1.9))
    figure = draw_restarts(results_of(*cells), "mnist")
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["FAB"].get_xydata().tolist() == [[100, 1.9]]
    assert lines["_FAB, open"].get_ydata().tolist() == [1.0, 1.4, 1.8]
    assert lines["PDPGD (ours)"].get_ydata().tolist() == pytest.approx([2.0, 2 / 3, 0.2])
    assert texts_of(axes) == ["40 of 98", "60 of 98", "80 of 98"]
    assert "not comparable with the others" in figure.get_supxlabel()


def test_where_all_were_fooled_nothing_is_marked() -> None:
    figure = draw_restarts(results_of(*restart_cells()), "mnist")
    assert figure.get_supxlabel() == ""
    assert all(not axes.texts and len(axes.get_lines()) == 2 for axes in figure.axes)


def test_a_panel_whose_runs_have_no_sample_in_common_says_so(tmp_path: Path) -> None:
    nothing = {"common": 0, "common_mean": None}
    cells = [replace(each, fooled=20, **nothing) for each in partial_cells()]
    (axes,) = draw_restarts(results_of(*cells), "mnist").axes
    assert texts_of(axes) == ["no sample was fooled by all runs"]
    assert axes.get_lines() == []
    cells = [replace(each, fooled=0, mean_distance=None, common=None, common_mean=None) for each in cells]
    (axes,) = draw_restarts(results_of(*cells), "mnist").axes
    assert texts_of(axes) == ["no sample was fooled"]
    assert len(write_figures(results_of(*cells), tmp_path)) == 1


def test_a_run_that_fooled_none_is_named_and_has_no_point() -> None:
    cells = partial_cells()
    cells[3] = replace(cells[3], fooled=0, mean_distance=None, common=None, common_mean=None)
    (axes,) = draw_restarts(results_of(*cells), "mnist").axes
    assert texts_of(axes) == ["40 of 98 samples; FAB-1 fooled none"]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["FAB"].get_xdata().tolist() == [3, 10]


def test_names_that_are_formulas_or_markup_are_drawn_as_they_are(tmp_path: Path) -> None:
    name, model = "set/<b>", "$x_1$ & <i>"
    info = dataset_info(name)
    info = replace(info, models={model: info.models["plain"]})
    cells = [replace(each, dataset=name, model=model) for each in restart_cells() if each.model == "plain"]
    (path,) = write_figures(results_of(*cells, datasets=(info,)), tmp_path)
    assert path.name == "restarts-set-b.svg"
    assert model in drawn_text(path.read_bytes())


def test_data_sets_whose_names_make_the_same_file_have_files_of_their_own(tmp_path: Path) -> None:
    cells = [*restart_cells("a b"), *restart_cells("a/b")]
    files = write_figures(results_of(*cells, datasets=(dataset_info("a b"), dataset_info("a/b"))), tmp_path)
    assert [path.name for path in files] == ["restarts-a-b.svg", "restarts-a-b-2.svg"]


def test_no_global_state_of_matplotlib_is_touched() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    draw_restarts(results_of(*restart_cells()), "mnist")
    assert dict(matplotlib.rcParams) == before


def test_examples_are_rows_of_images_below_the_inputs(experiment: tuple[Results, Path]) -> None:
    results, folder = experiment
    (path,) = write_figures(results, folder)
    assert path.name == "examples-mnist.png"
    assert path.stat().st_size < 200_000
    assert Image.open(io.BytesIO(path.read_bytes())).size[0] > 300
    figure = draw_examples(results, folder, "auto", "mnist", count=4, seed=1)
    assert len(figure.axes) == 4 * (1 + 2 * len(NORMS))
    names = [text.get_text() for text in figure.texts]
    assert names[0] == "input"
    assert [name for name in names if name in KINDS] == ["plain", "linf-at"]


def test_the_images_are_those_of_the_runs(experiment: tuple[Results, Path]) -> None:
    results, folder = experiment
    figure = draw_examples(results, folder, "auto", "mnist", count=12)
    run = pdpgd.load_evaluation(folder / "jobs" / results.cells[1].id)
    inputs = run.inputs()
    assert inputs is not None
    shown = [image_of(axes) for axes in figure.axes]
    assert all(np.array_equal(shown[place], inputs[place, 0]) for place in range(12))
    fooled = np.isfinite(run.own_distances("l2"))
    assert 0 < fooled.sum() < 12
    for place in range(12):
        point = shown[2 * 12 + place]
        assert (point is not None) == fooled[place]
        assert point is None or np.array_equal(point, run.examples("l2")[place, 0])


def image_of(axes: Any) -> Any:
    return axes.get_images()[0].get_array() if axes.get_images() else None


def test_the_samples_depend_on_the_seed_alone(experiment: tuple[Results, Path]) -> None:
    results, folder = experiment

    def inputs(seed: int) -> list[bytes]:
        figure = draw_examples(results, folder, "auto", "mnist", count=4, seed=seed)
        return [image_of(axes).tobytes() for axes in figure.axes[:4]]

    assert inputs(0) == inputs(0)
    assert len({tuple(inputs(seed)) for seed in range(3)}) > 1


def test_examples_of_an_attack_that_is_not_there_are_refused(experiment: tuple[Results, Path]) -> None:
    results, folder = experiment
    with pytest.raises(UnknownNameError, match=re.escape("expected one of auto, got 'pdpgd:10'")):
        draw_examples(results, folder, "pdpgd:10", "mnist")


def test_runs_that_are_gone_give_no_examples(experiment: tuple[Results, Path], tmp_path: Path) -> None:
    results, _ = experiment
    assert draw_examples(results, tmp_path, "auto", "mnist") is None


@pytest.mark.parametrize(
    ("cells", "label"),
    [
        (table_cells(), "pdpgd:100"),
        ([cell("bb", None, "l2", "plain"), cell("auto", None, "l2", "plain")], "auto"),
        ([cell("bb", None, "l2", "plain")], "bb"),
        ([failed("bb", None, "l2", "plain", "no memory")], None),
    ],
)
def test_the_attack_that_is_shown_is_the_papers_with_the_most_restarts(cells: list[Cell], label: str | None) -> None:
    assert shown_attack(results_of(*cells), "mnist") == label


def test_the_attack_that_was_asked_for_is_shown_or_none() -> None:
    assert shown_attack(results_of(*table_cells(), examples="fab:100"), "mnist") == "fab:100"
    assert shown_attack(results_of(*table_cells(), examples="fab:7"), "mnist") is None
