"""Benchmarks of the log. Run one with `python -m benchmarks.<name>`; README.md describes each."""
