"""Learning rules of Hopfield networks.

    outer_product    Hopfield's rule: sum of s_i s_j over patterns, with s = 2x - 1;
                     stores about n / (4 log n) patterns of n units
    storkey          Storkey's rule: the outer product, corrected for the fields of the
                     patterns stored before
    pseudo_inverse   projection onto the span of the patterns; not a local rule
    perceptron       units that are wrong change their weights, until none is wrong
    flow             minimum probability flow: minimises K, the sum over patterns and
                     units of exp(gap / 2)

The infimum of K is 0 if the patterns can be stored. K < 1 implies that every gap is
negative, so that the patterns are strict minima (Theorem 1). The infimum is reached
only at infinity, so `flow` stops as soon as all gaps are negative. `flow_step` is the
same rule for one pattern at a time, and local like the perceptron rule.

Patterns may have weights. A weight of 0 leaves a row out, so that sets of different
sizes have one shape and `vmap` can apply a rule to many sets. Only the outer product
and the flow use the values of other weights.

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
    """Warning that no network has all given patterns as strict minima.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", NotStorableWarning)
    ...     try:
    ...         flow(jax.random.key(0), jnp.array([[1, 1], [1, 0]]))
    ...     except NotStorableWarning as warning:
    ...         print(str(warning).split(";")[0])
    patterns 0 and 1 differ in one bit, so at most one of them can be stored
    """


class Learned(NamedTuple):
    """Result of a learning rule.

    >>> learned = outer_product(jnp.array([[1, 1, 0, 0], [1, 0, 1, 0]]))
    >>> learned.stored.tolist(), learned.params.weight.shape
    ([True, True], (4, 4))
    """

    params: Params
    """Network that was learned."""
    stored: Bool[Array, " pattern"]
    """Whether each pattern is a fixed point; True for patterns of weight 0."""
    num_steps: Array
    """Number of steps of L-BFGS for `flow`, or else of passes over the patterns."""


def outer_product(patterns: ArrayLike | Data) -> Learned:
    """Learn patterns by Hopfield's outer product rule.

    >>> outer_product(jnp.array([[1, 0, 1, 0]])).params.weight[0].tolist()
    [0.0, -0.5, 0.5, -0.5]
    """
    x, weights = _checked(patterns)
    s = 2 * x - 1
    return _learned(_from_spins((s * weights[:, None]).T @ s / x.shape[1]), x, weights)


def pseudo_inverse(patterns: ArrayLike | Data) -> Learned:
    """Learn patterns by the projection onto their span, without its diagonal.

    >>> pseudo_inverse(jnp.array([[1, 1, 0, 0], [1, 0, 1, 0]])).stored.tolist()
    [True, True]
    """
    x, weights = _checked(patterns)
    s = (2 * x - 1) * (weights > 0)[:, None]
    return _learned(_from_spins(jnp.linalg.pinv(s) @ s), x, weights)


def storkey(patterns: ArrayLike | Data) -> Learned:
    """Learn one pattern after another by Storkey's rule.

    >>> storkey(jnp.array([[1, 1, 0, 0], [1, 0, 1, 0]])).stored.tolist()
    [True, True]
    """
    x, weights = _checked(patterns)
    size = x.shape[1]

    def add(weight, row):
        x, counts = row
        s = 2 * x - 1
        # h_ij is the field at i without unit j; the diagonal of zeros leaves out i.
        local = (weight @ s)[:, None] - weight * s[None, :]
        change = (
            s[:, None] * s[None, :] - s[:, None] * local.T - local * s[None, :]
        ) / size
        change = change * (1 - jnp.eye(size, dtype=x.dtype))
        return weight + jnp.where(counts > 0, change, 0), None

    weight, _ = jax.lax.scan(add, jnp.zeros((size, size), x.dtype), (x, weights))
    return _learned(_from_spins(weight), x, weights)


def perceptron(patterns: ArrayLike | Data, *, max_passes: int = 1000) -> Learned:
    """Learn patterns by the symmetric perceptron rule.

    Each unit that is wrong changes its weights and its threshold. The rule converges if
    the patterns can be stored, but may take very many passes if they barely can.

    Args:
        max_passes: limit on the passes over all patterns.

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

    def is_unfinished(carry):
        _, wrong, count = carry
        return wrong & (count < max_passes)

    start = (_zero_network(x), jnp.asarray(True), jnp.zeros((), int))
    params, _, count = jax.lax.while_loop(is_unfinished, one_pass, start)
    return _learned(params, x, weights, count)


def flow(
    key: PRNGKeyArray,
    patterns: ArrayLike | Data,
    *,
    max_steps: int = 2000,
    penalty: Penalty | None = None,
) -> Learned:
    """Learn patterns by minimum probability flow, until all are strict minima.

    This takes few steps and leaves narrow basins of attraction. The widest basins are
    at the minimum of the flow with a small penalty: use `fit(key, MPF(hopfield.energy),
    ..., penalty=L2(2e-5))`. At that minimum, patterns similar to the given ones become
    minima, too. Without a penalty the gaps would grow forever, but the basins would not
    always grow with them.

    Args:
        patterns: rows of bits that differ from each other, optionally with weights.
        max_steps: limit on the steps of L-BFGS.
        penalty: penalty, by default on weights only. If it is too strong, patterns are
            not stored; see `stored` of the result.

    >>> patterns = jnp.array([[1, 1, 0, 0], [1, 0, 1, 0]])
    >>> flow(jax.random.key(0), patterns).stored.tolist()
    [True, True]
    """
    x, weights = _checked(patterns)
    if is_concrete((x, weights)) and (reason := _one_bit_apart(x, weights)):
        warnings.warn(
            f"{reason}; try to leave such patterns out, or see `stored`",
            NotStorableWarning,
            stacklevel=2,
        )
    with warnings.catch_warnings():
        # The goal is to store the patterns, which `stored` reports, and not a minimum.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = fit(
            key,
            MPF(energy),
            _zero_network(x),
            Data(x, weights),
            penalty=penalty,
            steps_per_round=max_steps,
            stop=AnyOf((AllStored(), GradientNorm())),
        )
    count = jnp.sum(~jnp.isnan(found.losses))
    return _learned(found.params, x, weights, count)


@recipe
class AllStored(StoppingRule):
    """Stopping rule for `fit` that is met if all patterns are strict minima.

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
    """Log of K, the sum over patterns and units of exp(gap / 2).

    If it is negative, all patterns are stored.

    >>> nothing = Params(jnp.zeros((2, 2)), jnp.zeros(2))
    >>> round(float(log_flow(nothing, jnp.array([[1, 1], [0, 0]]))), 4)  # log 4
    1.3863
    """
    x, weights = _checked(patterns)
    gaps = jax.vmap(flip_gaps, (None, 0))(params, x)
    return jax.scipy.special.logsumexp(gaps / 2, b=(weights > 0)[:, None])


def flow_step(params: Params, x: Float[Array, " unit"], rate: float | Scalar) -> Params:
    """Return the parameters after one step of the local, online flow rule.

    The change is -2 `rate` times the gradient of the pattern's flow,
    sum_i exp(gap_i / 2), with respect to J_ij = J_ji and theta_i.

    Args:
        x: pattern.
        rate: learning rate.

    >>> nothing = Params(jnp.zeros((2, 2)), jnp.zeros(2))
    >>> found = flow_step(nothing, jnp.array([1.0, 0.0]), 0.5)
    >>> found.threshold.tolist(), float(found.weight[0, 1])
    ([-0.5, 0.5], -0.5)
    """
    drive = (1 - 2 * x) * jnp.exp(flip_gaps(params, x) / 2)
    change = drive[:, None] * x[None, :]
    off = 1 - jnp.eye(len(x), dtype=x.dtype)
    weight = params.weight - rate * off * (change + change.T)
    return Params(weight, params.threshold + rate * drive)


def not_storable(patterns: ArrayLike | Data) -> str:
    """Reason why no network has all patterns as strict minima; "" if none is found.

    Of two patterns that differ in one bit, each would need the lower energy. This is
    the only reason that is tested.

    >>> not_storable(jnp.array([[1, 1], [1, 0]]))
    'patterns 0 and 1 differ in one bit, so at most one of them can be stored'
    """
    return _one_bit_apart(*_checked(patterns))


def _checked(patterns):
    data = as_data(patterns)
    refuse_mask(data, "learning rules require complete patterns")
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
            f"patterns must differ, got pattern {row} more than once; try "
            "data.unique_rows(patterns)"
        )


def _one_bit_apart(x, weights):
    """Message about patterns that differ in one bit; "" if there are none.

    Pairs are found by hashes and not by comparing all of them. The hash of a pattern is
    the xor of random numbers, one for each unit that is on. So a flip of a unit changes
    the hash by the xor with the number of that unit.
    """
    rows = np.flatnonzero(np.asarray(weights))
    on = np.asarray(x, bool)[rows]
    unit_hashes = np.random.default_rng(0).integers(2**63, size=on.shape[1])
    hashes = np.zeros(len(rows), unit_hashes.dtype)
    for unit, unit_hash in enumerate(unit_hashes):
        hashes ^= np.where(on[:, unit], unit_hash, 0)
    order = np.argsort(hashes)
    pairs = []
    for unit, unit_hash in enumerate(unit_hashes):
        one = np.flatnonzero(on[:, unit])
        place = np.searchsorted(hashes[order], hashes[one] ^ unit_hash)
        other = order[np.minimum(place, len(order) - 1)]
        found = hashes[other] == hashes[one] ^ unit_hash
        pairs += zip(one[found], other[found], strict=True)
    if not pairs:
        return ""
    i, j = min(sorted(pair) for pair in pairs)
    many = f" (one of {len(pairs):,} such pairs)" if len(pairs) > 1 else ""
    return (
        f"patterns {rows[i]} and {rows[j]} differ in one bit{many}, so at most one of "
        "them can be stored"
    )


def _zero_network(x):
    """Network of zeros, with the units and the dtype of the patterns `x`."""
    size = x.shape[1]
    return Params(jnp.zeros((size, size), x.dtype), jnp.zeros(size, x.dtype))


def _from_spins(weight):
    """Network over bits of the spins s_i = sign(W_i s), without the diagonal of W."""
    weight = (weight + weight.T) / 2 * (1 - jnp.eye(len(weight), dtype=weight.dtype))
    return Params(2 * weight, weight.sum(1))


def _learned(params, x, weights, count=None):
    count = jnp.ones((), int) if count is None else count
    return Learned(params, is_fixed(params, x) | (weights == 0), count)
