"""Data sets x models x norms x attacks x restarts, from one file to tables and figures."""
