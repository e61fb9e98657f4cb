"""How little must change before a classifier is wrong? Primal-dual minimum-norm adversarial attacks for PyTorch.

Names are loaded when they are first asked for (PEP 562): `pdpgd --help` waits for neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdpgd.attacks.auto import auto
    from pdpgd.attacks.config import PDGDConfig, PDPGDConfig
    from pdpgd.attacks.contract import Attack, AttackResult, History, Observation, StopAttack
    from pdpgd.attacks.pdgd import pdgd
    from pdpgd.attacks.pdpgd import pdpgd
    from pdpgd.errors import InvalidInputError, ModelError, PdpgdError, PdpgdWarning, UnknownNameError
    from pdpgd.evaluation.comparison import Comparison
    from pdpgd.evaluation.contest import compare
    from pdpgd.evaluation.result import Evaluation
    from pdpgd.evaluation.runner import evaluate, load_evaluation
    from pdpgd.norms import Norm, l0
    from pdpgd.presets import paper_config
    from pdpgd.report.page import write_report

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
    "load_evaluation",
    "paper_config",
    "pdgd",
    "pdpgd",
    "write_report",
]

_HOMES = {
    "attacks.config": ("PDGDConfig", "PDPGDConfig"),
    "attacks.auto": ("auto",),
    "attacks.contract": ("Attack", "AttackResult", "History", "Observation", "StopAttack"),
    "attacks.pdgd": ("pdgd",),
    "attacks.pdpgd": ("pdpgd",),
    "errors": ("InvalidInputError", "ModelError", "PdpgdError", "PdpgdWarning", "UnknownNameError"),
    "evaluation.comparison": ("Comparison",),
    "evaluation.contest": ("compare",),
    "evaluation.result": ("Evaluation",),
    "evaluation.runner": ("evaluate", "load_evaluation"),
    "norms": ("Norm", "l0"),
    "presets": ("paper_config",),
    "report.page": ("write_report",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
# Modules that are attributes after a plain `import pdpgd`.
_MODULES = ("attacks", "classifier", "criteria", "errors", "game", "norms", "presets", "proximal", "tensors")

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
