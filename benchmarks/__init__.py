"""Measurements: one module per quantitative claim, run by `python -m benchmarks NAME`."""
