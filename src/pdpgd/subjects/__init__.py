"""What an attack is pointed at: models and data, by name or path."""

from pdpgd.subjects.data import describe_data, load_data
from pdpgd.subjects.models import load_model
from pdpgd.subjects.normalise import Normalisation, Normalised
from pdpgd.subjects.samples import Samples

__all__ = ["Normalisation", "Normalised", "Samples", "describe_data", "load_data", "load_model"]
