"""Rules by which a Hopfield network learns patterns.

    outer_product    J_ij ~ s_i s_j, s = 2x - 1: one look at each pattern, some
                     n / (4 log n) of which are stored (Hopfield);
    storkey          the same less what the network knows already;
    pseudo_inverse   the projection onto the patterns: not local;
    perceptron       wrong units move their weights, until none is wrong;
    flow             minimum probability flow, whose K = sum over patterns and units of
                     exp(gap / 2) has the infimum 0 if they can be stored at all.

K < 1 makes every gap negative: the patterns are strict minima (Theorem 1). The infimum
is at infinity, so `flow` stops as soon as all gaps are negative. `flow_step` is the
same rule for one pattern at a time, local like the perceptron's.

Patterns may have weights, of which 0 leaves a row out: sets of different sizes then are
one shape, and all rules can be mapped over many with `vmap`. Of other weights only the
outer product and the flow make use; a projection or a perceptron has no place for them.

Reference: thesis, "Memory Storage in a Hopfield Network"; Hillar, Sohl-Dickstein and
Koepsell, arXiv:1204.2916. Storkey, ICANN 1997; Personnaz, Guyon and Dreyfus, J. Phys.
Lett. 46, 359 (1985).
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count, is_concrete
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.fitting.fit import fit
from probjax.fitting.result import ConvergenceWarning
from probjax.fitting.stopping import AnyOf, GradientNorm, Progress, StoppingRule
from probjax.interfaces import Penalty
from probjax.models.hopfield.network import (
    Params,
    energy,
    flip_gaps,
    is_fixed,
)
from probjax.objectives.flow import MPF
from probjax.recipe import recipe
from probjax.states import binary
from probjax.types import Array, ArrayLike, Bool, Data, Float, PRNGKeyArray, Scalar


class NotStorableWarning(UserWarning):
    """No network has all these patterns as strict minima.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", NotStorableWarning)
    ...     try:
    ...         flow(jax.random.key(0), jnp.array([[1, 1], [1, 0]]))
    ...     except NotStorableWarning as trouble:
    ...         print(trouble)
    not all can be stored: patterns 0 and 1 are one bit apart
    """


class Learned(NamedTuple):
    """A network, and what it has learned.

    >>> learned = outer_product(jnp.array([[1, 1, 0, 0], [1, 0, 1, 0]]))
    >>> learned.stored.tolist(), learned.params.weight.shape
    ([True, True], (4, 4))
    """

    params: Params
    stored: Bool[Array, " pattern"]
    """Which patterns are fixed points; those of weight 0 are said to be."""
    num_steps: Array
    """Descents, or passes over the patterns."""


def outer_product(patterns: ArrayLike | Data) -> Learned:
    """Hopfield's rule.

    >>> outer_product(jnp.array([[1, 0, 1, 0]])).params.weight[0].tolist()
    [0.0, -0.5, 0.5, -0.5]
    """
    x, weights = _checked(patterns)
    s = 2 * x - 1
    return _learned(_from_spins((s * weights[:, None]).T @ s / x.shape[1]), x, weights)


def pseudo_inverse(patterns: ArrayLike | Data) -> Learned:
    """The projection onto the span of the patterns, without its diagonal.

    >>> pseudo_inverse(jnp.array([[1, 1, 0, 0], [1, 0, 1, 0]])).stored.tolist()
    [True, True]
    """
    x, weights = _checked(patterns)
    s = (2 * x - 1) * (weights > 0)[:, None]
    return _learned(_from_spins(jnp.linalg.pinv(s) @ s), x, weights)


def storkey(patterns: ArrayLike | Data) -> Learned:
    """Storkey's rule, pattern after pattern.

    >>> storkey(jnp.array([[1, 1, 0, 0], [1, 0, 1, 0]])).stored.tolist()
    [True, True]
    """
    x, weights = _checked(patterns)
    size = x.shape[1]

    def add(weight, row):
        x, counts = row
        s = 2 * x - 1
        # h_ij leaves out j of the field at i, which leaves out i already.
        local = (weight @ s)[:, None] - weight * s[None, :]
        change = (
            s[:, None] * s[None, :] - s[:, None] * local.T - local * s[None, :]
        ) / size
        change = change * (1 - jnp.eye(size, dtype=x.dtype))
        return weight + jnp.where(counts > 0, change, 0), None

    weight, _ = jax.lax.scan(add, jnp.zeros((size, size), x.dtype), (x, weights))
    return _learned(_from_spins(weight), x, weights)


def perceptron(patterns: ArrayLike | Data, *, max_passes: int = 1000) -> Learned:
    """The symmetric perceptron: each wrong unit moves its weights and its threshold.

    It comes to an end if the patterns can be stored, after very many passes where they
    hardly can.

    >>> perceptron(jnp.array([[1, 1, 0, 0], [1, 0, 1, 0]])).stored.tolist()
    [True, True]
    """
    check_count("max_passes", max_passes)
    x, weights = _checked(patterns)
    return _perceptron(x, weights, max_passes)


@jax.jit
def _perceptron(x, weights, max_passes):
    size = x.shape[1]
    off = 1 - jnp.eye(size, dtype=x.dtype)

    def learn(carry, row):
        params, wrong = carry
        x, counts = row
        on = (params.weight @ x - params.threshold > 0).astype(x.dtype)
        miss = jnp.where(counts > 0, x - on, 0)
        change = miss[:, None] * x[None, :]
        weight = params.weight + off * (change + change.T)
        params = Params(weight, params.threshold - miss)
        return (params, wrong | jnp.any(miss != 0)), None

    def one_pass(carry):
        params, _, count = carry
        (params, wrong), _ = jax.lax.scan(
            learn, (params, jnp.asarray(False)), (x, weights)
        )
        return params, wrong, count + 1

    def going(carry):
        _, wrong, count = carry
        return wrong & (count < max_passes)

    nothing = Params(jnp.zeros((size, size), x.dtype), jnp.zeros(size, x.dtype))
    start = (nothing, jnp.asarray(True), jnp.zeros((), int))
    params, _, count = jax.lax.while_loop(going, one_pass, start)
    return _learned(params, x, weights, count)


def flow(
    key: PRNGKeyArray,
    patterns: ArrayLike | Data,
    *,
    max_steps: int = 2000,
    penalty: Penalty | None = None,
) -> Learned:
    """Minimum probability flow, until every pattern is a strict minimum.

    That is soon, and their basins are narrow. The widest are at the minimum of the
    flow with a small penalty, to which `fit(key, MPF(hopfield.energy), ...,
    penalty=L2(2e-5))` descends; and there patterns alike become minima too. Without a
    penalty gaps would widen for ever, and basins not always with them.

    Args:
        max_steps: of L-BFGS, at most.
        penalty: on weights and thresholds. A strong one keeps patterns from being
            stored, which `stored` tells.

    >>> patterns = jnp.array([[1, 1, 0, 0], [1, 0, 1, 0]])
    >>> flow(jax.random.key(0), patterns).stored.tolist()
    [True, True]
    """
    x, weights = _checked(patterns)
    if is_concrete((x, weights)) and (why := _one_bit_apart(x, weights)):
        warnings.warn(f"not all can be stored: {why}", NotStorableWarning, stacklevel=2)
    size = x.shape[1]
    nothing = Params(jnp.zeros((size, size), x.dtype), jnp.zeros(size, x.dtype))
    with warnings.catch_warnings():
        # What counts is whether they are stored, which `stored` tells.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = fit(
            key,
            MPF(energy),
            nothing,
            Data(x, weights),
            penalty=penalty,
            steps_per_round=max_steps,
            stop=AnyOf((AllStored(), GradientNorm())),
        )
    count = jnp.sum(~jnp.isnan(found.losses))
    return _learned(found.params, x, weights, count)


@recipe
class AllStored(StoppingRule):
    """Stopping rule for `fit`: every flip of every pattern raises the energy.

    >>> patterns = jnp.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]])
    >>> start = Params(jnp.zeros((4, 4)), jnp.zeros(4))
    >>> data, key = Data(patterns, jnp.ones(2)), jax.random.key(0)
    >>> found = fit(key, MPF(energy), start, data, stop=AllStored())
    >>> is_fixed(found.params, patterns).tolist()
    [True, True]
    """

    def is_met(self, progress: Progress, data: Data) -> Array:
        gaps = jax.vmap(flip_gaps, (None, 0))(progress.params, data.x)
        rows = jnp.all(gaps < 0, axis=1)
        return jnp.all(rows if data.weights is None else rows | (data.weights == 0))


def log_flow(params: Params, patterns: ArrayLike | Data) -> Scalar:
    """Log of K, the sum over patterns and units of exp(gap / 2): stored if below 0.

    >>> nothing = Params(jnp.zeros((2, 2)), jnp.zeros(2))
    >>> round(float(log_flow(nothing, jnp.array([[1, 1], [0, 0]]))), 4)  # log 4
    1.3863
    """
    x, weights = _checked(patterns)
    gaps = jax.vmap(flip_gaps, (None, 0))(params, x)
    return jax.scipy.special.logsumexp(gaps / 2, b=(weights > 0)[:, None])


def flow_step(params: Params, x: Float[Array, " unit"], rate: float | Scalar) -> Params:
    """The online rule: one small step for one pattern, with what its units know.

    Minus `rate` times the gradient of the pattern's flow, sum_i exp(gap_i / 2), in
    J_ij = J_ji and theta_i; up to a factor of 2 that belongs to the rate.

    >>> nothing = Params(jnp.zeros((2, 2)), jnp.zeros(2))
    >>> found = flow_step(nothing, jnp.array([1.0, 0.0]), 0.5)
    >>> found.threshold.tolist(), float(found.weight[0, 1])
    ([-0.5, 0.5], -0.5)
    """
    turn = 1 - 2 * x
    drive = turn * jnp.exp(flip_gaps(params, x) / 2)
    change = drive[:, None] * x[None, :]
    off = 1 - jnp.eye(len(x), dtype=x.dtype)
    weight = params.weight - rate * off * (change + change.T)
    return Params(weight, params.threshold + rate * drive)


def not_storable(patterns: ArrayLike | Data) -> str:
    """Why no network can have these as strict minima; "" if nothing is seen.

    Of two patterns one bit apart each would have to be the lower one.

    >>> not_storable(jnp.array([[1, 1], [1, 0]]))
    'patterns 0 and 1 are one bit apart'
    """
    return _one_bit_apart(*_checked(patterns))


def _checked(patterns):
    data = as_data(patterns)
    refuse_mask(data, "patterns are learned whole")
    x = binary(data.x)
    if x.ndim != 2:
        raise ValueError(f"patterns must be rows of units, got shape {x.shape}")
    weights = data.weights
    weights = jnp.ones(num_rows(data), x.dtype) if weights is None else weights
    if is_concrete((x, weights)):
        _refuse_repeats(x, weights)
    return x, weights.astype(x.dtype)


def _refuse_repeats(x, weights):
    rows = np.flatnonzero(np.asarray(weights))
    bits = np.packbits(np.asarray(x, bool)[rows], axis=1)
    _, first, counts = np.unique(bits, axis=0, return_index=True, return_counts=True)
    if np.any(counts > 1):
        row = rows[first[counts > 1].min()]
        raise ValueError(
            f"patterns must differ, got pattern {row} more than once: give unique_rows"
        )


def _one_bit_apart(x, weights):
    """Why not, without a look at all pairs: by numbers that tell patterns apart.

    A flip of a unit changes a pattern's number by the unit's mark.
    """
    rows = np.flatnonzero(np.asarray(weights))
    on = np.asarray(x, bool)[rows]
    marks = np.random.default_rng(0).integers(2**63, size=on.shape[1])
    numbers = np.zeros(len(rows), marks.dtype)
    for unit, mark in enumerate(marks):
        numbers ^= np.where(on[:, unit], mark, 0)
    order = np.argsort(numbers)
    pairs = []
    for unit, mark in enumerate(marks):
        one = np.flatnonzero(on[:, unit])
        place = np.searchsorted(numbers[order], numbers[one] ^ mark)
        other = order[np.minimum(place, len(order) - 1)]
        found = numbers[other] == numbers[one] ^ mark
        pairs += zip(one[found], other[found], strict=True)
    if not pairs:
        return ""
    i, j = min(sorted(pair) for pair in pairs)
    others = f", of {len(pairs):,} such pairs" if len(pairs) > 1 else ""
    return f"patterns {rows[i]} and {rows[j]} are one bit apart{others}"


def _from_spins(weight):
    """The network of spins s_i = sign(W_i s), W without its diagonal, in bits."""
    weight = (weight + weight.T) / 2 * (1 - jnp.eye(len(weight), dtype=weight.dtype))
    return Params(2 * weight, weight.sum(1))


def _learned(params, x, weights, count=None):
    count = jnp.ones((), int) if count is None else count
    return Learned(params, is_fixed(params, x) | (weights == 0), count)
