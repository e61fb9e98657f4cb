"""How little must change before a classifier is wrong? Minimum-norm adversarial attacks for PyTorch.

Names are imported when they are first used (PEP 562): `pdpgd --help` waits for neither torch nor numpy, and reading
results does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pdpgd import _moved

# For type checkers, which do not run __getattr__; tests/unit/test_public_api.py compares it with _PUBLIC.
if TYPE_CHECKING:
    from pdpgd.attacks.auto import auto as auto
    from pdpgd.attacks.auto_config import AutoConfig as AutoConfig
    from pdpgd.attacks.base import Attack as Attack
    from pdpgd.attacks.base import AttackResult as AttackResult
    from pdpgd.attacks.base import History as History
    from pdpgd.attacks.base import Observation as Observation
    from pdpgd.attacks.base import StopAttack as StopAttack
    from pdpgd.attacks.config import PDGDConfig as PDGDConfig
    from pdpgd.attacks.config import PDPGDConfig as PDPGDConfig
    from pdpgd.attacks.config import paper_config as paper_config
    from pdpgd.attacks.primal_dual import pdgd as pdgd
    from pdpgd.attacks.primal_dual import pdpgd as pdpgd
    from pdpgd.data.loading import load_data as load_data
    from pdpgd.errors import InvalidInputError as InvalidInputError
    from pdpgd.errors import ModelError as ModelError
    from pdpgd.errors import PdpgdError as PdpgdError
    from pdpgd.errors import PdpgdWarning as PdpgdWarning
    from pdpgd.errors import UnknownNameError as UnknownNameError
    from pdpgd.evaluation.compare import compare as compare
    from pdpgd.evaluation.evaluate import evaluate as evaluate
    from pdpgd.models.loading import load_model as load_model
    from pdpgd.norms import Norm as Norm
    from pdpgd.norms import l0 as l0
    from pdpgd.norms import register_norm as register_norm
    from pdpgd.progress import ProgressListener as ProgressListener
    from pdpgd.report.page import write_report as write_report
    from pdpgd.runs.comparison import Comparison as Comparison
    from pdpgd.runs.result import Evaluation as Evaluation
    from pdpgd.runs.result import load_evaluation as load_evaluation

__version__ = "0.1.0"

_PUBLIC = {
    "Attack": "attacks.base",
    "AttackResult": "attacks.base",
    "AutoConfig": "attacks.auto_config",
    "Comparison": "runs.comparison",
    "Evaluation": "runs.result",
    "History": "attacks.base",
    "InvalidInputError": "errors",
    "ModelError": "errors",
    "Norm": "norms",
    "Observation": "attacks.base",
    "PDGDConfig": "attacks.config",
    "PDPGDConfig": "attacks.config",
    "PdpgdError": "errors",
    "PdpgdWarning": "errors",
    "ProgressListener": "progress",
    "StopAttack": "attacks.base",
    "UnknownNameError": "errors",
    "auto": "attacks.auto",
    "compare": "evaluation.compare",
    "evaluate": "evaluation.evaluate",
    "l0": "norms",
    "load_data": "data.loading",
    "load_evaluation": "runs.result",
    "load_model": "models.loading",
    "paper_config": "attacks.config",
    "pdgd": "attacks.primal_dual",
    "pdpgd": "attacks.primal_dual",
    "register_norm": "norms",
    "write_report": "report.page",
}
"""Every public name and the module that defines it."""

__all__ = list(_PUBLIC)

# Modules that are attributes after a plain `import pdpgd`.
_MODULES = ("attacks", "classifier", "criteria", "errors", "norms", "proximal", "tensors")

_moved.install()

# A type checker that saw __getattr__ would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _MODULES or f"{__name__}.{name}" in _moved.MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _PUBLIC:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
