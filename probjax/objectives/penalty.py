"""Penalties: terms added to any loss by `fit(..., penalty=...)`.

    L1: strength * sum_i w_i |theta_i|        L2: strength * sum_i w_i theta_i^2
    GroupL1: strength * sum_g w_g |theta_g|

`weights` is a tree like the parameters. Each leaf of it is one number for the whole
leaf of parameters, or an array with one number for each entry (for `GroupL1`: for each
group). The default is weight 1 for all parameters, or for the couplings only where an
estimator or the command line restricts the penalty to couplings (`sparing`).
`ising.couplings_only(params)` returns weights that do not penalise biases. A parameter
that appears in two entries of a symmetric matrix is counted once.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from probjax.checks import holds, is_finite
from probjax.interfaces import Penalty
from probjax.recipe import recipe
from probjax.types import Params, PyTree, Scalar

BIAS_STRENGTH = 1e-4


@recipe
class L2(Penalty):
    """strength * sum_i w_i theta_i^2, which shrinks parameters.

    >>> float(L2(0.5).value(jnp.array([1.0, -3.0])))
    5.0
    """

    strength: float
    weights: PyTree = None

    def __post_init__(self):
        _check(self.strength, self.weights)

    def with_strength(self, strength: Scalar | float) -> "L2":
        return dataclasses.replace(self, strength=strength)

    def sparing(self, couplings: Params) -> Penalty:
        return _sparing(self, couplings)

    def value(self, params: Params) -> Scalar:
        return self.strength * _total(lambda p, w: w * p**2, params, self.weights)

    def prox(self, params: Params, step: Scalar) -> Params:
        scale = 2 * step * self.strength
        return _each(lambda p, w: p / (1 + scale * w), params, self.weights)


@recipe
class L1(Penalty):
    """strength * sum_i w_i |theta_i|, which shrinks, and sets some entries to zero.

    >>> L1(0.5).prox(jnp.array([1.0, -3.0, 0.25]), 1.0).tolist()
    [0.5, -2.5, 0.0]
    """

    strength: float
    weights: PyTree = None

    def __post_init__(self):
        _check(self.strength, self.weights)

    @property
    def smooth(self) -> bool:
        return False

    def with_strength(self, strength: Scalar | float) -> "L1":
        return dataclasses.replace(self, strength=strength)

    def sparing(self, couplings: Params) -> Penalty:
        return _sparing(self, couplings)

    def value(self, params: Params) -> Scalar:
        return self.strength * _total(lambda p, w: w * jnp.abs(p), params, self.weights)

    def prox(self, params: Params, step: Scalar) -> Params:
        def shrink(p, w):
            return jnp.sign(p) * jnp.maximum(jnp.abs(p) - step * self.strength * w, 0)

        return _each(shrink, params, self.weights)

    def vanishing(self, gradient: Params) -> Scalar:
        """Compute the dual norm of the gradient: max_i |g_i| / w_i over w_i > 0."""
        return _largest(lambda g, w: _ratio(jnp.abs(g), w), gradient, self.weights)


@recipe
class GroupL1(Penalty):
    """strength * sum_g w_g |theta_g|, which shrinks, and sets whole groups to zero.

    The groups are leaf[i] for every leaf and i, the entries with the same leading
    index, and |theta_g| is their Euclidean norm. In a vector each entry is a group, so
    that the penalty is `L1`; a scalar is a group too.

    Reference: Yuan and Lin, "Model selection and estimation in regression with grouped
    variables", JRSS B 68 (2006).

    >>> GroupL1(2.5).prox(jnp.array([[3.0, 4.0], [1.0, 2.0]]), 1.0).tolist()
    [[1.5, 2.0], [0.0, 0.0]]
    """

    strength: float
    weights: PyTree = None

    def __post_init__(self):
        _check(self.strength, self.weights)

    @property
    def smooth(self) -> bool:
        return False

    def with_strength(self, strength: Scalar | float) -> "GroupL1":
        return dataclasses.replace(self, strength=strength)

    def sparing(self, couplings: Params) -> Penalty:
        return _sparing(self, couplings)

    def value(self, params: Params) -> Scalar:
        def weighted_norms(p, w):
            return w * _norms(p)

        return self.strength * _total(weighted_norms, params, self.weights, _per_group)

    def prox(self, params: Params, step: Scalar) -> Params:
        def shrink(p, w):
            # A group of norm zero must shrink to zero and not to NaN.
            norms = jnp.maximum(_norms(p), jnp.finfo(p.dtype).tiny)
            factor = jnp.maximum(1 - step * self.strength * w / norms, 0)
            return p * factor.reshape(factor.shape + (1,) * (p.ndim - 1))

        return _each(shrink, params, self.weights, _per_group)

    def vanishing(self, gradient: Params) -> Scalar:
        """Compute the dual norm: max_g |gradient_g| / w_g over w_g > 0."""

        def ratios(g, w):
            return _ratio(_norms(g), w)

        return _largest(ratios, gradient, self.weights, _per_group)


@recipe
class PenaltySum(Penalty):
    """The sum of two penalties on different parameters.

    The proximal map applies that of `first` and then that of `second`, which is exact
    because they penalise different parameters.

    >>> both = PenaltySum(L1(1.0, weights=[1.0, 0.0]), L2(0.5, weights=[0.0, 1.0]))
    >>> [float(leaf) for leaf in both.prox([3.0, 3.0], 1.0)]
    [2.0, 1.5]
    """

    first: Penalty
    second: Penalty

    @property
    def smooth(self) -> bool:
        return self.first.smooth and self.second.smooth

    def value(self, params: Params) -> Scalar:
        return self.first.value(params) + self.second.value(params)

    def prox(self, params: Params, step: Scalar) -> Params:
        return self.second.prox(self.first.prox(params, step), step)


def _sparing(penalty, couplings):
    """Restrict a penalty without weights to couplings, with a weak `L2` on biases.

    Biases are not shrunk, because a bias of zero is not simpler than another: it means
    a mean of one half. The weak penalty keeps biases of constant units finite.
    """
    if penalty.weights is not None:
        return penalty
    # One number for each leaf has a valid shape for groups, too.
    couplings = jax.tree.map(partial(jnp.max, initial=0), couplings)
    biases = jax.tree.map(lambda weight: 1 - weight, couplings)
    weighted = dataclasses.replace(penalty, weights=couplings)
    return PenaltySum(weighted, L2(BIAS_STRENGTH, weights=biases))


def _check(strength, weights):
    for name, values in (("strength", strength), ("weights", weights)):
        if not holds(_is_weight, values):
            raise ValueError(f"{name} must be 0 or above and finite, got {values}")


def _is_weight(value):
    return (value >= 0) & is_finite(value)


def _per_group(leaf):
    """Shape of the weights of a leaf: one number for each group."""
    return jnp.shape(leaf)[:1]


def _norms(leaf):
    """Euclidean norm of each group of a leaf."""
    squares = jnp.sum(leaf**2, axis=tuple(range(1, jnp.ndim(leaf))))
    # The gradient of a norm at zero is defined as zero, like that of |theta|.
    positive = squares > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), 0)


def _ratio(size, weight):
    """Size / weight, or 0 for entries of weight 0."""
    return jnp.where(weight > 0, size / jnp.where(weight > 0, weight, 1), 0)


def _each(function, params, weights, shape=jnp.shape):
    """Apply `function(leaf, weight)` to all leaves; `shape` returns that of weights."""
    params = jax.tree.map(jnp.asarray, params)
    if weights is None:
        return jax.tree.map(lambda p: function(p, 1), params)
    form = jax.tree.structure(params)
    if jax.tree.structure(weights) != form:
        raise ValueError(
            f"weights must be a tree like params, {form}, "
            f"got {jax.tree.structure(weights)}"
        )
    for p, w in zip(jax.tree.leaves(params), jax.tree.leaves(weights), strict=True):
        if jnp.shape(w) not in ((), shape(p)):
            raise ValueError(
                f"weights must be one number or have shape {shape(p)} for a leaf of "
                f"shape {p.shape}, got shape {jnp.shape(w)}"
            )
    return jax.tree.map(function, params, weights)


def _total(function, params, weights, shape=jnp.shape):
    leaves = jax.tree.leaves(_each(function, params, weights, shape))
    return jnp.stack([jnp.sum(leaf) for leaf in leaves]).sum()


def _largest(function, gradient, weights, shape=jnp.shape):
    leaves = jax.tree.leaves(_each(function, gradient, weights, shape))
    return jnp.stack([jnp.max(leaf, initial=0) for leaf in leaves]).max()
