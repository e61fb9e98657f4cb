"""Results of runs: specs, records, stores, metrics and reliability. Needs NumPy and pyarrow, never torch."""
