"""Benchmarks of the log. Run one with `python -m benchmarks.<name>`; README.md says what each is for."""
