"""How long a test waits for something that is to happen before it calls it a hang."""

from __future__ import annotations

PATIENCE = 1200.0
"""Seconds. The slowest thing that is waited for takes half a minute on a quiet machine; this is only reached by a hang,
however busy the machine is."""
