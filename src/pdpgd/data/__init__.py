"""Data sets: loading them by name or path, readers of their formats, and downloads."""

from pdpgd.data.dataset import Samples
from pdpgd.data.loading import describe_data, load_data

__all__ = ["Samples", "describe_data", "load_data"]
