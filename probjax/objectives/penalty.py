"""Penalties: terms added to any loss by `fit(..., penalty=...)`.

    L1: strength * sum_i w_i |theta_i|        L2: strength * sum_i w_i theta_i^2
    GroupL1: strength * sum_g w_g |theta_g|

`weights` is a tree like the parameters, by default ones; `ising.couplings_only(params)`
spares the biases. A leaf of it is one number for the whole leaf of parameters, or an
array with one for each entry (of `GroupL1`: for each group). A parameter shared by two
entries of a matrix is counted once.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from probjax.checks import holds
from probjax.interfaces import Penalty
from probjax.recipe import recipe
from probjax.types import Params, PyTree, Scalar

FAINT = 1e-4


@recipe
class L2(Penalty):
    """strength * sum_i w_i theta_i^2: shrinks.

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
    """strength * sum_i w_i |theta_i|: shrinks, and leaves exact zeros.

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
        """The least strength that keeps at zero what is penalised and is there.

        The dual norm of the loss's gradient: max_i |g_i| / w_i over w_i > 0.
        """
        return _largest(lambda g, w: _ratio(jnp.abs(g), w), gradient, self.weights)


@recipe
class GroupL1(Penalty):
    """strength * sum_g w_g |theta_g|: shrinks, and leaves whole groups exactly zero.

    The groups are leaf[i] for every leaf and i, entries with the same leading index,
    and |theta_g| is their Euclidean length. In a vector each entry is a group, which is
    `L1`; a scalar is one too.

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
        def weighed(p, w):
            return w * _lengths(p)

        return self.strength * _total(weighed, params, self.weights, _per_group)

    def prox(self, params: Params, step: Scalar) -> Params:
        def shrink(p, w):
            # A length that is zero must shrink to zero and not to NaN.
            lengths = jnp.maximum(_lengths(p), jnp.finfo(p.dtype).tiny)
            kept = jnp.maximum(1 - step * self.strength * w / lengths, 0)
            return p * kept.reshape(kept.shape + (1,) * (p.ndim - 1))

        return _each(shrink, params, self.weights, _per_group)

    def vanishing(self, gradient: Params) -> Scalar:
        """The least strength that keeps at zero what is penalised and is there.

        The dual norm of the loss's gradient: max_g |gradient_g| / w_g over w_g > 0.
        """

        def ratios(g, w):
            return _ratio(_lengths(g), w)

        return _largest(ratios, gradient, self.weights, _per_group)


@recipe
class Both(Penalty):
    """The sum of two penalties on different parameters.

    Its proximal map is then that of one after that of the other.

    >>> both = Both(L1(1.0, weights=[1.0, 0.0]), L2(0.5, weights=[0.0, 1.0]))
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
    """Restrict a penalty without weights to couplings, with a faint `L2` on the rest.

    A bias of zero is not simpler than another: it is a mean of one half. The faint
    penalty keeps the biases of units that never change finite.
    """
    if penalty.weights is not None:
        return penalty
    # One number for each leaf is of the right shape for groups as well.
    couplings = jax.tree.map(partial(jnp.max, initial=0), couplings)
    biases = jax.tree.map(lambda weight: 1 - weight, couplings)
    weighted = dataclasses.replace(penalty, weights=couplings)
    return Both(weighted, L2(FAINT, weights=biases))


def _check(strength, weights):
    for name, values in (("strength", strength), ("weights", weights)):
        if not holds(_is_weight, values):
            raise ValueError(f"{name} must not be negative, got {values}")


def _is_weight(value):
    return value >= 0


def _per_group(leaf):
    """The shape of one number for each group of a leaf."""
    return jnp.shape(leaf)[:1]


def _lengths(leaf):
    squares = jnp.sum(leaf**2, axis=tuple(range(1, jnp.ndim(leaf))))
    # The slope of a length at zero is taken to be zero, as that of |theta| is.
    away = squares > 0
    return jnp.where(away, jnp.sqrt(jnp.where(away, squares, 1)), 0)


def _ratio(size, weight):
    return jnp.where(weight > 0, size / jnp.where(weight > 0, weight, 1), 0)


def _each(function, params, weights, shape=jnp.shape):
    """`function(leaf, weight)` for all leaves; `shape` is that of a leaf's weights."""
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
                f"weights must be one number or of shape {shape(p)} for a leaf of "
                f"shape {p.shape}, got shape {jnp.shape(w)}"
            )
    return jax.tree.map(function, params, weights)


def _total(function, params, weights, shape=jnp.shape):
    leaves = jax.tree.leaves(_each(function, params, weights, shape))
    return jnp.stack([jnp.sum(leaf) for leaf in leaves]).sum()


def _largest(function, gradient, weights, shape=jnp.shape):
    leaves = jax.tree.leaves(_each(function, gradient, weights, shape))
    return jnp.stack([jnp.max(leaf, initial=0) for leaf in leaves]).max()
