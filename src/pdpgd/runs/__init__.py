"""What a run leaves behind, and what can be read from it: NumPy and pyarrow, never torch."""
