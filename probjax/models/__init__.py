"""Models: one module or package for each family, with functions of `params` and `x`."""
