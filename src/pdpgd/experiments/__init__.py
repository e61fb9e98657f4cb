"""Experiments: runs over data sets, models, norms, attacks and restarts, described by one TOML file."""
