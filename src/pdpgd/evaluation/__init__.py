"""Evaluating models: attacks are run in jobs, their points verified and measured in every norm, and results stored."""
