"""Losses: what `fit` minimises. Each sees one row at a time."""
