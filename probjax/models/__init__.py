"""Models: one module a family, each a few functions of `params` and one state."""
