from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from pdpgd import AttackResult, Evaluation, PDGDConfig, evaluate, load_evaluation, pdgd
from pdpgd.errors import InvalidInputError, StorageError, UnknownNameError
from pdpgd.runs.comparison import Row
from pdpgd.runs.spec import AttackSpec
from support.models import TinyConv


@pytest.fixture
def case(generator: Generator) -> tuple[TinyConv, tuple[Tensor, Tensor]]:
    model = TinyConv(generator)
    images = torch.rand(10, 3, 6, 6, generator=generator)
    labels = model(images).argmax(1)
    labels[3] = (labels[3] + 1) % 5
    return model, (images, labels)


@pytest.fixture
def evaluation(case: tuple[TinyConv, tuple[Tensor, Tensor]], tmp_path: Path) -> Evaluation:
    return evaluate(*case, norms=["linf", "l2"], budget=60, chunk_size=4, out=tmp_path / "run")


def test_robust_accuracy_falls_from_the_clean_one_as_the_radius_grows(evaluation: Evaluation) -> None:
    assert evaluation.clean_accuracy == evaluation.robust_accuracy(0.0, "linf") == 0.9
    shares = [evaluation.robust_accuracy(radius, "linf") for radius in np.linspace(0, 1, 50)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0.0


def test_the_union_is_what_withstands_all_norms_at_once(evaluation: Evaluation) -> None:
    linf, l2 = evaluation.distances("linf"), evaluation.distances("l2")
    radii = {"linf": float(np.median(linf)), "l2": float(np.median(l2))}
    expected = np.mean((linf > radii["linf"] + 1e-6) & (l2 > radii["l2"] + 1e-6 * max(1, radii["l2"])))
    assert evaluation.robust_accuracy(radii) == expected
    assert evaluation.robust_accuracy(radii) <= min(evaluation.robust_accuracy(r, n) for n, r in radii.items())


def test_the_curve_agrees_with_the_robust_accuracy(evaluation: Evaluation) -> None:
    curve = evaluation.curve("l2")
    assert curve.radius[0] == 0.0
    for radius, accuracy in zip(curve.radius, curve.accuracy, strict=True):
        assert evaluation.robust_accuracy(float(radius), "l2") == pytest.approx(accuracy)


def test_the_counts_are_apart_and_add_up(evaluation: Evaluation) -> None:
    counts = evaluation.counts("linf")
    assert counts["initially wrong"] == 1
    assert sum(counts.values()) == evaluation.samples == 10


def test_a_data_frame_has_a_row_a_sample_and_norm(evaluation: Evaluation) -> None:
    frame = evaluation.to_pandas()
    assert len(frame) == 20
    assert frame[frame.norm == "l2"].distance.tolist() == evaluation.distances("l2").tolist()


def test_the_points_are_where_the_distances_say(
    evaluation: Evaluation, case: tuple[TinyConv, tuple[Tensor, Tensor]]
) -> None:
    _, (images, _) = case
    sizes = np.abs(evaluation.examples("linf").astype(float) - images.numpy()).reshape(10, -1).max(1)
    assert sizes.tolist() == evaluation.distances("linf").tolist()
    assert evaluation.examples("linf", eight_bit=True).dtype == np.uint8


def test_the_summary_and_the_json_say_the_same(evaluation: Evaluation) -> None:
    numbers = json.loads(json.dumps(evaluation.as_json(), allow_nan=False))
    assert numbers["clean_accuracy"] == 0.9
    assert numbers["norms"]["l2"]["counts"]["fooled"] == 9
    text = str(evaluation)
    assert f"{numbers['norms']['l2']['median']:.4g}" in text
    assert "reliability: " in text


def test_a_finished_run_loads_with_the_same_numbers(evaluation: Evaluation) -> None:
    assert evaluation.folder is not None
    loaded = load_evaluation(evaluation.folder)
    assert loaded.as_json() == evaluation.as_json()
    assert loaded.distances("l2").tolist() == evaluation.distances("l2").tolist()
    assert json.loads((evaluation.folder / "summary.json").read_text()) == evaluation.as_json()


def test_one_norm_needs_no_name(case: tuple[TinyConv, tuple[Tensor, Tensor]]) -> None:
    single = evaluate(*case, norms="l2", budget=10)
    assert single.robust_accuracy(0.1) == single.robust_accuracy(0.1, "l2")
    assert single.folder is None


def test_wrong_questions_are_refused(evaluation: Evaluation, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="norm: expected one of linf, l2, got none"):
        evaluation.robust_accuracy(0.1)
    with pytest.raises(UnknownNameError, match="norm of this run: expected one of l2, linf, got 'l1'"):
        evaluation.robust_accuracy(0.1, "l1")
    for radius in (-0.1, float("nan"), "0.1", True, None):
        with pytest.raises(InvalidInputError, match="eps: expected a number >= 0"):
            evaluation.robust_accuracy(radius, "l2")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="a mapping of norms to radii"):
        evaluation.robust_accuracy({})
    with pytest.raises(StorageError, match=r"without spec\.json"):
        load_evaluation(tmp_path / "nowhere")


def test_labels_the_model_does_not_have_are_refused(case: tuple[TinyConv, tuple[Tensor, Tensor]]) -> None:
    model, (images, labels) = case
    for place in (0, 9):
        wrong = labels.clone()
        wrong[place] = 7
        with pytest.raises(InvalidInputError, match="labels: expected 0 to 4, the classes of the model, got 7"):
            evaluate(model, (images, wrong), norms="l2", budget=10, chunk_size=5)


def test_without_checks_the_attack_is_run_and_judged_and_nothing_else(
    case: tuple[TinyConv, tuple[Tensor, Tensor]], evaluation: Evaluation, tmp_path: Path
) -> None:
    lean = evaluate(*case, norms=["linf"], budget=60, chunk_size=4, out=tmp_path / "lean", checks=False)
    assert np.array_equal(lean.own_distances("linf"), evaluation.own_distances("linf"))
    assert np.array_equal(lean.distances("linf"), lean.own_distances("linf"))
    assert lean.examples("linf").shape == (10, 3, 6, 6)
    assert np.isinf(lean.column("cheap_distance", "linf")).all()
    assert {path.stem for path in (tmp_path / "lean" / "checks").iterdir()} == {"preflight"}
    assert {check.name for check in lean.reliability.checks} < {check.name for check in evaluation.reliability.checks}
    assert load_evaluation(tmp_path / "lean").spec == lean.spec
    for ask in (lean.distances, lean.examples):
        with pytest.raises(InvalidInputError, match="eight_bit: expected a run with checks"):
            ask("linf", eight_bit=True)


def test_settings_are_part_of_the_spec_and_reach_the_attack(case: tuple[TinyConv, tuple[Tensor, Tensor]]) -> None:
    short = evaluate(*case, norms=["l2"], attack="pdgd", settings={"steps": 2, "finetune_steps": 0}, checks=False)
    assert short.spec.settings == {"steps": 2, "finetune_steps": 0}
    assert short.spec.budget is None
    assert short.column("backwards", "l2").tolist() == [2 * (sample != 3) for sample in range(10)]
    with pytest.raises(InvalidInputError, match=r"attack pdgd: expected settings among steps, .*, got wings"):
        evaluate(*case, norms=["l2"], attack="pdgd", settings={"wings": 2})


def test_samples_on_which_an_attack_failed_are_noted(case: tuple[TinyConv, tuple[Tensor, Tensor]]) -> None:
    def half(model: TinyConv, inputs: Tensor, labels: Tensor, *, norm: str) -> AttackResult:
        result = pdgd(model, inputs, labels, norm=norm, config=PDGDConfig(steps=2, finetune_steps=0))
        return replace(result, faults={1: "ZeroDivisionError: by nothing"})

    evaluation = evaluate(*case, norms=["l2"], attack=half, chunk_size=5, checks=False)
    # Place 1 of what the attack was given; sample 3 is wrong already and not among them.
    assert [note for note in evaluation.notes if "failed" in note] == [
        "the attack failed on sample 1 (l2): ZeroDivisionError: by nothing",
        "the attack failed on sample 6 (l2): ZeroDivisionError: by nothing",
    ]


def test_former_names_still_work_and_say_what_to_write(evaluation: Evaluation) -> None:
    with pytest.warns(DeprecationWarning, match="use Evaluation.stats"):
        assert evaluation.facts == tuple(stats.as_json() for stats in evaluation.stats)
    with pytest.warns(DeprecationWarning, match="use Evaluation.check_stats"):
        assert evaluation.checks == tuple(stats.as_json() for stats in evaluation.check_stats)
    with pytest.warns(DeprecationWarning, match="use Evaluation.fooled_all"):
        assert evaluation.whole("l2") == evaluation.fooled_all("l2")
    row = Row(AttackSpec(name="auto"), "l2", evaluation, None)
    with pytest.warns(DeprecationWarning, match="not row.fooled_all"):
        assert row.partial == (not row.fooled_all)
