"""Penalties: terms added to any loss by `fit(..., penalty=...)`.

    L1: strength * sum_i w_i |theta_i|        L2: strength * sum_i w_i theta_i^2
    GroupL1: strength * sum_g w_g |theta_g|

`weights` is one number, a tree like the parameters, or a prefix of such a tree. Each
leaf of it is one number, or an array with one number for each entry (for `GroupL1`: for
each group). A parameter that appears in two entries of a symmetric matrix is counted
once.

Without weights, a penalty applies to couplings only if the energy declares its
couplings, as built-in models do (`closed_form(couplings=...)`), and to all parameters
otherwise. `weights=1.0` applies it to all parameters. Biases and fields are not shrunk,
because a bias of zero is not simpler than another: it means a mean of one half. They
have the faint prior

    BIAS_PRIOR / rows * sum_i theta_i^2,    BIAS_PRIOR = 0.01,

which keeps biases of units that never change finite. It is the default of plmc for
fields (lambda_h = 0.01). A unit that is never active in n rows gets a probability of
about 0.2 / n. The bias of a unit that is active k times moves by less than
0.25 / sqrt(k) standard errors, in up to 100,000 rows. The prior is never stronger than
an `L2` itself. `rows` is the sum of the weights of the rows. Weights that add up to 1
are probabilities of states, which count as a million rows.

Losses are means over rows. A penalty that other programs add to a sum over rows has
their strength divided by the number of rows: what plmc calls lambda_e is
`L2(lambda_e / rows)`, where `rows` is the effective number of sequences, the sum of
`potts.sequence_weights`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import holds, is_concrete, is_finite, is_on_host, namespace
from probjax.interfaces import Penalty
from probjax.recipe import recipe
from probjax.types import Params, PyTree, Scalar

BIAS_PRIOR = 0.01
"""Strength, times the number of rows, of the faint `L2` on biases and fields."""


@recipe
class L2(Penalty):
    """strength * sum_i w_i theta_i^2, which shrinks parameters.

    The loss is a mean over rows, so that a strength lambda of programs that penalise a
    sum over rows, such as plmc, is `L2(lambda / rows)`. Without weights, biases and
    fields of built-in models are not shrunk, see `probjax.objectives.penalty`.

    >>> float(L2(0.5).value(jnp.array([1.0, -3.0])))
    5.0
    """

    strength: float
    weights: PyTree = None

    def __post_init__(self):
        _check(self.strength, self.weights)

    def with_strength(self, strength: Scalar | float) -> "L2":
        return dataclasses.replace(self, strength=strength)

    def sparing(self, couplings: Params, bias_strength: Scalar | float) -> Penalty:
        smaller = _smaller(self.strength, bias_strength)
        return _sparing(self, couplings, couplings, smaller)

    def value(self, params: Params) -> Scalar:
        return self.strength * _total(lambda p, w: w * p**2, params, self.weights)

    def prox(self, params: Params, step: Scalar) -> Params:
        # Weights first, because the strength may be the largest number.
        def shrink(p, w):
            return p / (1 + 2 * step * (w * self.strength))

        return _each(shrink, params, self.weights)


@recipe
class L1(Penalty):
    """strength * sum_i w_i |theta_i|, which shrinks, and sets some entries to zero.

    Without weights, biases and fields of built-in models are not shrunk, see
    `probjax.objectives.penalty`.

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

    def sparing(self, couplings: Params, bias_strength: Scalar | float) -> Penalty:
        return _sparing(self, couplings, couplings, bias_strength)

    def in_chart(self, scales: Params) -> "L1 | None":
        weights = _in_chart(self.weights, scales, jnp.abs)
        return None if weights is None else dataclasses.replace(self, weights=weights)

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
    that the penalty is `L1`; a scalar is a group too. Without weights, biases and
    fields of built-in models are not shrunk, see `probjax.objectives.penalty`.

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

    def sparing(self, couplings: Params, bias_strength: Scalar | float) -> Penalty:
        weights = jax.tree.map(_largest_of_groups, couplings)
        spread = jax.tree.map(_spread_over_groups, weights, couplings)
        return _sparing(self, weights, spread, bias_strength)

    def in_chart(self, scales: Params) -> "GroupL1 | None":
        """Return the penalty of the coordinates; None if a scale varies in a group."""
        weights = _in_chart(self.weights, scales, _scale_of_groups)
        return None if weights is None else dataclasses.replace(self, weights=weights)

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
    because they penalise different parameters. The strength is that of `first`.

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

    def with_strength(self, strength: Scalar | float) -> "PenaltySum | None":
        first = self.first.with_strength(strength)
        return None if first is None else PenaltySum(first, self.second)

    def vanishing(self, gradient: Params) -> Scalar | None:
        return self.first.vanishing(gradient)

    def parts(self) -> tuple[Penalty | None, Penalty | None]:
        pairs = zip(self.first.parts(), self.second.parts(), strict=True)
        smooth, other = (_sum_of(first, second) for first, second in pairs)
        return smooth, other

    def in_chart(self, scales: Params) -> "PenaltySum | None":
        first, second = self.first.in_chart(scales), self.second.in_chart(scales)
        if first is None or second is None:
            return None
        return PenaltySum(first, second)


def _sum_of(first, second):
    """Return the sum of two penalties, each of which may be None."""
    if first is None or second is None:
        return second if first is None else first
    return PenaltySum(first, second)


def _sparing(penalty, weights, couplings, bias_strength):
    """Restrict a penalty without weights to couplings, with a weak `L2` on the rest.

    Args:
        weights: weights of the penalty.
        couplings: the same for each entry, 1 for couplings and 0 for biases.
    """
    if penalty.weights is not None:
        return penalty
    biases = jax.tree.map(lambda coupling: 1 - coupling, couplings)
    weighted = dataclasses.replace(penalty, weights=weights)
    return PenaltySum(weighted, L2(bias_strength, weights=biases))


def _smaller(strength, bias_strength):
    """Return the smaller of two strengths, in the dtype of the first."""
    if is_concrete((strength, bias_strength)):
        return min(float(strength), float(bias_strength))
    dtype = jnp.result_type(strength)
    return jnp.minimum(strength, jnp.asarray(bias_strength, dtype))


def _largest_of_groups(leaf):
    """Reduce the numbers of a leaf to one for each group."""
    if np.ndim(leaf) < 2:
        return leaf
    return namespace(leaf).max(leaf, axis=tuple(range(1, leaf.ndim)))


def _spread_over_groups(of_groups, like):
    """Repeat the number of each group for all of its entries."""
    if np.ndim(like) < 2:
        return of_groups
    expanded = of_groups.reshape(of_groups.shape + (1,) * (like.ndim - 1))
    return namespace(of_groups).broadcast_to(expanded, like.shape)


def _in_chart(weights, scales, of_weights):
    """Multiply weights by scales; None if a penalised leaf is not proportional.

    Args:
        of_weights: function that returns the scales of the weights of one leaf, or None
            if the penalty has another form in the coordinates.
    """
    form = jax.tree.structure(scales)
    weights = 1.0 if weights is None else weights
    products = []
    for weight, scale in zip(
        jax.tree.leaves(_like(weights, scales)), jax.tree.leaves(scales), strict=True
    ):
        if _is_zero(weight):
            products.append(0.0)
            continue
        is_proportional = not (isinstance(scale, float) and scale == 0)
        factor = of_weights(scale) if is_proportional else None
        if factor is None:
            return None
        products.append(weight * factor)
    return jax.tree.unflatten(form, products)


def _is_zero(weight):
    """Whether a weight is 0 as far as the host can read it."""
    is_readable = is_concrete(weight) and is_on_host(weight)
    return is_readable and not np.any(np.asarray(weight))


def _scale_of_groups(scale):
    """Return the absolute scale of each group; None unless it is known to be one."""
    if np.ndim(scale) < 2:
        return jnp.abs(scale)
    entries = scale.reshape(len(scale), -1)
    if entries.shape[1] != 1:
        if not (is_concrete(scale) and is_on_host(scale)):
            return None
        known = np.asarray(entries)
        if not np.all(known == known[:, :1]):
            return None
    return jnp.abs(entries[:, 0])


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
    weights = _like(weights, params)
    for p, w in zip(jax.tree.leaves(params), jax.tree.leaves(weights), strict=True):
        if jnp.shape(w) not in ((), shape(p)):
            raise ValueError(
                f"weights must be one number or have shape {shape(p)} for a leaf of "
                f"shape {p.shape}, got shape {jnp.shape(w)}"
            )
    return jax.tree.map(function, params, weights)


def _like(weights, params):
    """Repeat the numbers of a prefix of the tree of parameters for all its leaves."""
    try:
        return jax.tree.broadcast(weights, params)
    except ValueError as error:
        raise ValueError(
            f"weights must be a tree like params, {jax.tree.structure(params)}, or a "
            f"prefix of it, got {jax.tree.structure(weights)}; try one number"
        ) from error


def _total(function, params, weights, shape=jnp.shape):
    leaves = jax.tree.leaves(_each(function, params, weights, shape))
    return jnp.stack([jnp.sum(leaf) for leaf in leaves]).sum()


def _largest(function, gradient, weights, shape=jnp.shape):
    leaves = jax.tree.leaves(_each(function, gradient, weights, shape))
    return jnp.stack([jnp.max(leaf, initial=0) for leaf in leaves]).max()
