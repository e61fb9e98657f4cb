"""How little must change before a classifier is wrong? Primal-dual minimum-norm adversarial attacks for PyTorch.

Names are loaded when they are first asked for (PEP 562): `pdpgd --help` waits for neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdpgd.attacks.auto import auto
    from pdpgd.attacks.base import Attack, AttackResult, History, Observation, StopAttack
    from pdpgd.attacks.config import PDGDConfig, PDPGDConfig, paper_config
    from pdpgd.attacks.primal_dual import pdgd, pdpgd
    from pdpgd.data.loading import load_data
    from pdpgd.errors import InvalidInputError, ModelError, PdpgdError, PdpgdWarning, UnknownNameError
    from pdpgd.evaluation.compare import compare
    from pdpgd.evaluation.evaluate import evaluate
    from pdpgd.models.loading import load_model
    from pdpgd.norms import Norm, l0, register_norm
    from pdpgd.report.page import write_report
    from pdpgd.runs.comparison import Comparison
    from pdpgd.runs.result import Evaluation, load_evaluation

__version__ = "0.1.0"

__all__ = [
    "Attack",
    "AttackResult",
    "Comparison",
    "Evaluation",
    "History",
    "InvalidInputError",
    "ModelError",
    "Norm",
    "Observation",
    "PDGDConfig",
    "PDPGDConfig",
    "PdpgdError",
    "PdpgdWarning",
    "StopAttack",
    "UnknownNameError",
    "auto",
    "compare",
    "evaluate",
    "l0",
    "load_data",
    "load_evaluation",
    "load_model",
    "paper_config",
    "pdgd",
    "pdpgd",
    "register_norm",
    "write_report",
]

_HOMES = {
    "attacks.auto": ("auto",),
    "attacks.base": ("Attack", "AttackResult", "History", "Observation", "StopAttack"),
    "attacks.config": ("PDGDConfig", "PDPGDConfig", "paper_config"),
    "attacks.primal_dual": ("pdgd", "pdpgd"),
    "data.loading": ("load_data",),
    "errors": ("InvalidInputError", "ModelError", "PdpgdError", "PdpgdWarning", "UnknownNameError"),
    "evaluation.compare": ("compare",),
    "evaluation.evaluate": ("evaluate",),
    "models.loading": ("load_model",),
    "norms": ("Norm", "l0", "register_norm"),
    "report.page": ("write_report",),
    "runs.comparison": ("Comparison",),
    "runs.result": ("Evaluation", "load_evaluation"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
# Modules that are attributes after a plain `import pdpgd`.
_MODULES = ("attacks", "classifier", "criteria", "errors", "norms", "proximal", "tensors")

# A type checker that saw __getattr__ would believe in any name.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
