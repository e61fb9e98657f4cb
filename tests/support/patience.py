"""How long a test waits before it reports a hang."""

from __future__ import annotations

PATIENCE = 1200.0
"""Seconds. The slowest operation takes half a minute on an idle machine; only a hang reaches this on a busy one."""
