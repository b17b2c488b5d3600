"""Goodness of fit: comparison of statistics between data and model, with their errors.

    z = (<f>_data - <f>_model) / stderr,
    stderr^2 = var f / rows + (variance of the chains' means) / chains,

where var f is the average of the variances of f over the data and under the model. If a
model fits, z has a standard deviation of about 1 for statistics that were not fitted,
such as third moments and the population count for pairwise models. With the training
data |z| is a little smaller, because the model fits part of their noise. With test data
|z| is a little larger, because of the errors of the parameters.

Reference: Schneidman, Berry, Segev and Bialek, Nature 440, 1007 (2006), for spikes.
"""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from math import erfc, sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from probjax.checks import is_concrete
from probjax.data.chunks import cut_chunk
from probjax.data.rows import as_data, num_rows
from probjax.states import binary
from probjax.trees import float_dtype, floating
from probjax.types import (
    Array,
    ArrayLike,
    Data,
    Float,
    PyTree,
    State,
    map_states,
    split_inputs,
)

CHUNK, NUM_BATCHES = 256, 20

_product = partial(jnp.tensordot, axes=1, precision="highest")


class Comparison(NamedTuple):
    """Means of a statistic over data and model, entry by entry.

    >>> parts = ([0.5, 0.9], [0.5, 0.5], [0.1, 0.1], [0.0, 4.0])
    >>> Comparison(*map(np.array, parts)).describe().split(" (")[0]
    '1 of 2 entries differ by more than 3 standard errors'
    """

    observed: Float[Array, "..."]
    """Mean of the statistic over the data."""
    expected: Float[Array, "..."]
    """Mean of the statistic under the model."""
    stderr: Float[Array, "..."]
    """Standard error of `observed - expected`."""
    z: Float[Array, "..."]
    """(observed - expected) / stderr; 0 if both means are equal."""

    def describe(
        self, entries: ArrayLike | None = None, *, threshold: float = 3.0
    ) -> str:
        """Describe how many entries differ, and which differs most.

        Args:
            entries: labels of the entries, such as `triples(size)`; their indices by
                default.
            threshold: difference above which an entry is counted, in standard errors.
        """
        z = np.abs(np.asarray(self.z))
        if entries is None:
            where = np.unravel_index(z.argmax(), z.shape)
        else:
            where = np.atleast_1d(np.asarray(entries)[z.argmax()])
        chance = z.size * erfc(threshold / sqrt(2))
        return (
            f"{np.sum(z > threshold)} of {z.size} entries differ by more than "
            f"{threshold:g} standard errors ({chance:.2g} by chance), "
            f"the largest by {z.max():.1f} at ({', '.join(map(str, where))})"
        )


def compare(
    statistic: Callable[[State], Array], data: PyTree | Data, model: PyTree | Data
) -> Comparison:
    """Compare the means of a statistic over data and model.

    The variance of a row is the average of those in the data and under the model. With
    the variance of one side alone, an event that never occurred on this side would have
    a standard error of 0.

    Args:
        statistic: function of one state, defined at module level like an energy. Pass
            its parameters as `jax.tree_util.Partial(function, array)`.
        data: independent rows. Weights are counts: a weight of 2 means two equal rows.
        model: draws `(chain, draw, ...)` of at least two chains, such as
            `sample(...).x`. Their error is estimated from the spread of the chains'
            means, so that draws of one chain need not be independent; a dozen chains
            make it reliable. Draws without an axis of chains, such as those of
            `exact.sample`, are cut into 20 batches in place of chains. Or a `Data` of
            states with their probabilities as weights, which has no error.

    >>> rows = np.array([[0, 1], [1, 1], [1, 0], [1, 1]])
    >>> states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> found = compare(jnp.sum, rows, Data(states, np.full(4, 0.25)))
    >>> float(found.observed), float(found.expected), round(float(found.z), 2)
    (1.5, 1.0, 1.55)
    """
    data, model = _validated(data, model)
    return _compared(Partial(_row_moments, Partial(statistic)), data, model)


def pair_frequencies(data: ArrayLike | Data, model: ArrayLike | Data) -> Comparison:
    """Compare P(x_i = x_j = 1) for i <= j, in the order of `np.triu_indices`.

    The result is that of `compare` with the pairs of one state, but matrix products
    make it feasible for thousands of bits. Encode letters as one-hot bits.

    Args:
        data: rows as in `compare`, one array of bits.
        model: draws or states as in `compare`, of bits.

    >>> rows = np.array([[0, 1], [1, 1], [1, 0], [1, 1]])
    >>> states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> found = pair_frequencies(rows, Data(states, np.full(4, 0.25)))
    >>> found.observed.tolist(), found.expected.tolist()
    ([0.75, 0.5, 0.75], [0.5, 0.25, 0.5])
    """
    data, model = _validated(_states_only(data), _states_only(model))
    if not (isinstance(data.x, jax.Array) and data.x.ndim == 2):
        raise ValueError(
            f"data must be (row, site), got shape {jax.tree.map(jnp.shape, data.x)}"
        )
    jax.tree.map(binary, (data.x, model.x if isinstance(model, Data) else model))
    return _compared(Partial(_pair_moments), data, model)


def third_moments(data: ArrayLike | Data, model: ArrayLike | Data) -> Comparison:
    """Compare <(x_i - m_i)(x_j - m_j)(x_k - m_k)> for i < j < k, ordered as `triples`.

    m is the mean of the data on both sides. An error e_i of m_i changes the difference
    between data and model by -e_i times the difference of the covariances of j and k.
    This vanishes to first order if the covariances agree, so the error of m is ignored.

    Args:
        data: rows as in `compare`, one array.
        model: draws or states as in `compare`.

    >>> rows = np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])
    >>> states = np.array([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    >>> found = third_moments(rows, Data(states, np.full(8, 0.125)))
    >>> found.observed.tolist(), found.expected.tolist()
    ([-0.125], [0.0])
    """
    data, model = _validated(_states_only(data), _states_only(model))
    if not (isinstance(data.x, jax.Array) and data.x.ndim == 2 and data.x.shape[1] > 2):
        raise ValueError(
            "data must be (row, site) with at least 3 sites, "
            f"got shape {jax.tree.map(jnp.shape, data.x)}"
        )
    return _compared(Partial(_triple_moments, _mean_row(data)), data, model)


@jax.jit
def _mean_row(data):
    # Relative to the first row, so that a mean far from 0 loses no digits.
    first = data.x[:1]
    return first[0] + jnp.average(data.x - first, axis=0, weights=data.weights)


def population_count(data: PyTree | Data, model: PyTree | Data) -> Comparison:
    """Compare P(K = k) for k = 0 to d, where K is the number of ones among d bits.

    Args:
        data: rows as in `compare`, of bits.
        model: draws or states as in `compare`, of bits.

    >>> rows = np.array([[0, 1], [1, 1], [1, 0], [1, 1]])
    >>> states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> found = population_count(rows, Data(states, np.full(4, 0.25)))
    >>> found.observed.tolist(), found.expected.tolist()
    ([0.0, 0.5, 0.5], [0.25, 0.5, 0.25])
    """
    data, model = _validated(_states_only(data), _states_only(model))
    jax.tree.map(binary, (data.x, model.x if isinstance(model, Data) else model))
    return _compared(Partial(_row_moments, Partial(_population)), data, model)


def triples(size: int) -> np.ndarray:
    """Sites i < j < k of each third moment, `(triple, 3)`.

    >>> triples(4).tolist()
    [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]]
    """
    return np.array(list(combinations(range(size), 3)), np.int32)


class _Moments(NamedTuple):
    """Moments of a statistic over weighted rows."""

    total: Array
    """Sum of the weights."""
    mean: Array
    variance: Array


@jax.jit
def _compared(moments, data, model):
    """Compare data and model, with `moments(x, weights)` of a chunk of rows."""
    weights = data.weights
    if weights is None:
        weights = jnp.ones(num_rows(data), float_dtype(data.x))
    observed = _over_rows(moments, data.x, weights)
    expected, variance_of_mean = _under_model(moments, model)
    unbiased = observed.variance * observed.total / (observed.total - 1)
    row_variance = (unbiased + expected.variance) / 2
    stderr = jnp.sqrt(row_variance / observed.total + variance_of_mean)
    difference = observed.mean - expected.mean
    # A statistic that never varies has a standard error of 0, and differences of its
    # means within rounding must not count.
    scale = jnp.maximum(jnp.abs(observed.mean), jnp.abs(expected.mean))
    equal = jnp.abs(difference) <= 4 * jnp.finfo(scale.dtype).eps * scale
    z = jnp.where(equal, 0, difference) / jnp.where(equal, 1, stderr)
    return Comparison(observed.mean, expected.mean, stderr, z)


def _under_model(moments, model):
    """Compute the moments under the model, and the variance of the estimated mean."""
    if isinstance(model, Data):
        return _over_rows(moments, model.x, model.weights), 0.0
    draws = jax.tree.leaves(model)[0].shape[1]
    ones = jnp.ones(draws, float_dtype(model))

    def add(carry, chain):
        all_draws, means = carry
        found = _over_rows(moments, chain, ones)
        mean = _Moments(jnp.ones_like(found.total), found.mean, 0 * found.variance)
        return (_merged(all_draws, found), _merged(means, mean)), None

    first = jax.tree.map(lambda leaf: leaf[0], model)
    empty = _empty(partial(_over_rows, moments), first, ones)
    (all_draws, means), _ = jax.lax.scan(add, (empty, empty), model)
    return all_draws, means.variance / (means.total - 1)


def _over_rows(moments, x, weights):
    """Compute the moments over all rows, chunk by chunk."""
    count = len(weights)
    size = min(count, CHUNK)

    def add(i, before):
        return _merged(before, moments(*cut_chunk(i, size, x, weights)))

    chunk = jax.tree.map(lambda leaf: leaf[:size], (x, weights))
    return jax.lax.fori_loop(0, -(-count // size), add, _empty(moments, *chunk))


def _empty(moments, x, weights):
    """Moments of no rows, in the shapes that `moments` returns."""
    shapes = jax.eval_shape(moments, x, weights)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _merged(first, second):
    """Combine moments; only differences are squared, so that no digits are lost."""
    total = first.total + second.total
    share = second.total / jnp.where(total > 0, total, 1)
    change = second.mean - first.mean
    within = first.variance + share * (second.variance - first.variance)
    variance = within + share * (1 - share) * change**2
    return _Moments(total, first.mean + share * change, variance)


def _row_moments(statistic, x, weights):
    values = jax.vmap(statistic)(x).astype(weights.dtype)
    total, shares = _shares(weights)
    # Relative to the first value, so that the mean of equal values is exact.
    mean = values[0] + _product(shares, values - values[:1])
    return _Moments(total, mean, _product(shares, (values - mean[None]) ** 2))


def _pair_moments(x, weights):
    """Moments of products of two bits, which are bits of variance p (1 - p)."""
    total, shares = _shares(weights)
    mean = _product((shares[:, None] * x).T, x)[np.triu_indices(x.shape[1])]
    return _Moments(total, mean, jnp.maximum(mean * (1 - mean), 0))


def _triple_moments(mean_row, x, weights):
    """Moments of centred triples.

    The product of all pairs with all sites is one matrix product, which contains each
    triple three times.
    """
    size = len(mean_row)
    total, shares = _shares(weights)
    centred = x - mean_row[None]
    first, second = np.triu_indices(size, 1)
    pair = np.zeros((size, size), np.int32)
    pair[first, second] = np.arange(len(first))
    i, j, k = triples(size).T

    def mean(values):
        pairs = values[:, first] * values[:, second]
        return _product((shares[:, None] * pairs).T, values)[pair[i, j], k]

    found = mean(centred)
    return _Moments(total, found, jnp.maximum(mean(centred**2) - found**2, 0))


def _shares(weights):
    """Return the sum of the weights, and the weights divided by it."""
    total = weights.sum()
    return total, weights / jnp.where(total > 0, total, 1)


def _population(x):
    """One-hot vector of the number of ones in `x`."""
    flat, _ = ravel_pytree(x)
    counts = jnp.arange(flat.size + 1, dtype=flat.dtype)
    return (counts == flat.sum()).astype(flat.dtype)


_floating = partial(map_states, partial(jax.tree.map, floating))


def _states_only(rows):
    """Return rows without the inputs of their states."""
    if isinstance(rows, Data):
        return rows._replace(x=split_inputs(rows.x)[0])
    return split_inputs(rows)[0]


def _validated(data, model):
    """Return data and model as floating arrays, after all checks."""
    data = as_data(data)
    if data.mask is not None:
        raise ValueError(
            "data must be complete, got a mask; leave out rows with missing entries"
        )
    data = data._replace(x=_floating(data.x))
    rows = num_rows(data) if data.weights is None else data.weights.sum()
    if is_concrete(rows) and not rows >= 2:
        raise ValueError(
            f"data must have at least two rows, got {rows}; weights are counts of rows"
        )
    shapes, is_data = _shapes(data.x, 1), isinstance(model, Data)
    model = _validated_states(model) if is_data else _validated_draws(model, shapes)
    # Data and states have one leading axis, draws have two.
    states = _shapes(model.x, 1) if isinstance(model, Data) else _shapes(model, 2)
    if states != shapes:
        raise ValueError(
            f"model must have states like the data's, of shape {shapes}, got {states}"
        )
    return data, model


def _validated_states(model):
    model = as_data(model)
    total = 0 if model.weights is None else model.weights.sum()
    if is_concrete(total) and not abs(total - 1) < 1e-3:
        raise ValueError(
            "weights of a model's states must be probabilities that sum to 1, "
            f"got a sum of {total}"
        )
    return model._replace(x=_floating(model.x))


def _validated_draws(model, shapes):
    model = _floating(as_data(model).x)
    if _shapes(model, 1) == shapes:
        model = jax.tree.map(_in_batches, model)
    if any(leaf.ndim < 2 or len(leaf) < 2 for leaf in jax.tree.leaves(model)):
        raise ValueError(
            "model must be draws (chain, draw, ...) of at least two chains, "
            f"got shape {_shapes(model, 0)}"
        )
    return model


def _in_batches(draws):
    """Cut a single sequence of draws into batches, which are compared like chains.

    For independent draws, such as those of `exact.sample`, the error is exact; for a
    single chain it is that of batch means.
    """
    size = max(len(draws) // NUM_BATCHES, 1)
    count = len(draws) // size
    return draws[: count * size].reshape(count, size, *draws.shape[1:])


def _shapes(tree, num_leading):
    """Shapes of all leaves without their leading axes."""
    return jax.tree.map(lambda leaf: leaf.shape[num_leading:], tree)
