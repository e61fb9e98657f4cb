"""Checks, oracles and broken copies that the tests share."""
