"""Measurements, one module per claim: `python -m benchmarks NAME`."""
