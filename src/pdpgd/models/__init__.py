"""Models: loading them by name or path, weights, normalization, architectures, and adapters to other zoos."""

from pdpgd.models.loading import load_model
from pdpgd.models.normalization import Normalization, Normalized

__all__ = ["Normalization", "Normalized", "load_model"]
