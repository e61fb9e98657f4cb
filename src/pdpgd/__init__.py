"""How little must change before a classifier is wrong? Primal-dual minimum-norm adversarial attacks for PyTorch."""

from pdpgd.attacks.config import PDGDConfig, PDPGDConfig
from pdpgd.attacks.contract import Attack, AttackResult, Observation
from pdpgd.attacks.pdgd import pdgd
from pdpgd.attacks.pdpgd import pdpgd
from pdpgd.errors import InvalidInputError, ModelError, PdpgdError, PdpgdWarning, UnknownNameError
from pdpgd.norms import Norm, l0
from pdpgd.presets import paper_config

__version__ = "0.1.0"

__all__ = [
    "Attack",
    "AttackResult",
    "InvalidInputError",
    "ModelError",
    "Norm",
    "Observation",
    "PDGDConfig",
    "PDPGDConfig",
    "PdpgdError",
    "PdpgdWarning",
    "UnknownNameError",
    "l0",
    "paper_config",
    "pdgd",
    "pdpgd",
]
