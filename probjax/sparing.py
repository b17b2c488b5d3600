"""Penalties that leave zeros, for models of which only couplings are to be zero."""

import dataclasses
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp

from probjax.objectives.penalty import L2
from probjax.types import Params, Penalty, Scalar, recipe

FAINT = 1e-4


@recipe
class Both:
    """The sum of two penalties on different parameters.

    Its proximal map is then that of one after that of the other.

    >>> from probjax import L1
    >>> both = Both(L1(1.0, weights=[1.0, 0.0]), L2(0.5, weights=[0.0, 1.0]))
    >>> [float(leaf) for leaf in both.prox([3.0, 3.0], 1.0)]
    [2.0, 1.5]
    """

    first: Penalty
    second: Penalty
    smooth: ClassVar[bool] = False

    def value(self, params: Params) -> Scalar:
        return self.first.value(params) + self.second.value(params)

    def prox(self, params: Params, step: Scalar) -> Params:
        return self.second.prox(self.first.prox(params, step), step)


def spare_biases(penalty: Penalty, couplings: Params) -> Penalty:
    """`penalty` on couplings alone, unless it has weights of its own.

    A bias of zero is no simpler than another: it is a mean of one half. Biases keep a
    faint `L2`, so that units that never change have finite ones.

    Args:
        couplings: 1 on couplings and 0 on biases, as `ising.couplings_only` gives.

    >>> from probjax import L1, ising
    >>> params = ising.from_matrix([[3.0, 2.0], [2.0, 0.0]])
    >>> penalty = spare_biases(L1(0.5), ising.couplings_only(params))
    >>> round(float(penalty.value(params)), 4)  # 0.5 * 2 + 1e-4 * 3^2
    1.0009
    """
    if getattr(penalty, "weights", ()) is not None:
        return penalty
    # One number for each leaf is of the right shape for groups as well.
    couplings = jax.tree.map(partial(jnp.max, initial=0), couplings)
    biases = jax.tree.map(lambda weight: 1 - weight, couplings)
    weighted = dataclasses.replace(penalty, weights=couplings)  # pyright: ignore
    return Both(weighted, L2(FAINT, weights=biases))
