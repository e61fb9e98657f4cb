"""The authors' settings, compared with a second transcription of the paper and its scripts."""

from __future__ import annotations

import pytest

from pdpgd import PDGDConfig, PDPGDConfig, UnknownNameError, paper_config
from pdpgd.paper import MODEL_KINDS, PAPER_NORMS, START_RADIUS, paper_case

ALL = [(data, norm, kind) for data in START_RADIUS for norm in PAPER_NORMS for kind in MODEL_KINDS]


@pytest.mark.parametrize(("data", "norm", "kind"), ALL)
def test_what_the_paper_sets_everywhere_is_set_everywhere(data: str, norm: str, kind: str) -> None:
    config = paper_config(data, norm, kind, restarts=10)
    assert (config.steps, config.finetune_steps, config.restarts) == (500, 500, 10)
    assert (config.primal_decay, config.dual_rate, config.dual_decay) == (0.01, 0.1, 0.1)
    assert (config.finetune_primal, config.finetune_dual, config.surrogate) == (0.01, 0.1, "logistic")
    assert config.start_radius == {"mnist": 0.5, "cifar10": 0.25, "restricted-imagenet": 0.1}[data]


@pytest.mark.parametrize(("data", "norm", "kind"), ALL)
def test_l2_is_for_pdgd_and_the_others_for_pdpgd_with_the_authors_loop(data: str, norm: str, kind: str) -> None:
    config = paper_config(data, norm, kind)
    assert isinstance(config, PDGDConfig) == (norm == "l2")
    assert isinstance(config, PDPGDConfig) == (norm != "l2")
    if isinstance(config, PDPGDConfig):
        assert (config.prox, config.project_first) == ("released", False)
    assert config.keras_adam


@pytest.mark.parametrize(
    ("data", "norm", "kind", "restarts", "rate"),
    [
        *(("mnist", norm, kind, 1, 1.0) for norm in PAPER_NORMS for kind in MODEL_KINDS),
        ("mnist", "l0", "linf-at", 10, 0.1),
        ("mnist", "l0", "l2-at", 10, 1.0),
        ("mnist", "l1", "linf-at", 10, 1.0),
        *(("cifar10", "linf", kind, 1, 0.1) for kind in MODEL_KINDS),
        ("cifar10", "l2", "plain", 1, 0.1),
        ("cifar10", "l2", "linf-at", 1, 1.0),
        ("cifar10", "l2", "l2-at", 1, 1.0),
        *(("cifar10", norm, kind, 1, 1.0) for norm in ("l1", "l0") for kind in MODEL_KINDS),
    ],
)
def test_the_primal_rate_is_the_authors_choice(data: str, norm: str, kind: str, restarts: int, rate: float) -> None:
    assert paper_config(data, norm, kind, restarts=restarts).primal_rate == rate


@pytest.mark.parametrize("restarts", [1, 10, 100])
@pytest.mark.parametrize(("data", "norm", "kind"), ALL)
def test_the_first_penalty_is_a_tenth_but_for_restarts_on_the_plain_mnist_net_in_l1(
    data: str, norm: str, kind: str, restarts: int
) -> None:
    is_odd = (data, norm, kind) == ("mnist", "l1", "plain") and restarts > 1
    assert paper_config(data, norm, kind, restarts=restarts).penalty == (10.0 if is_odd else 0.1)


@pytest.mark.parametrize("names", [("mnits", "l2", "plain"), ("mnist", "L2", "plain"), ("mnist", "l2", "plane")])
def test_an_unknown_name_is_answered_with_a_suggestion(names: tuple[str, str, str]) -> None:
    with pytest.raises(UnknownNameError, match="did you mean"):
        paper_config(*names)


@pytest.mark.parametrize(
    ("model", "data", "case"),
    [
        ("mnist-linf-at", "my.npz", ("mnist", "linf-at")),
        ("paper:cifar10-l2-at", "my.npz", ("cifar10", "l2-at")),
        ("trained-plain", "mnist-1000", ("mnist", "plain")),
        ("trained-plain", "my.npz", None),
        ("timm:resnet50", "restricted-imagenet", None),
    ],
)
def test_names_tell_which_net_of_the_paper_a_model_is_like(model: str, data: str, case: tuple[str, str] | None) -> None:
    assert paper_case(model, data) == case
