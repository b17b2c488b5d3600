"""Goodness of fit: statistics of the data against the model's, with sampling noise.

    z = (<f>_data - <f>_model) / stderr,
    stderr^2 = var f / rows + (variance of the chains' means) / chains,

var f being the mean of its variances over the data and under the model. A model that
fits has z of about unit spread in statistics that it was not fitted to, as third
moments and the population count are for pairwise models. Against the rows it was fitted
to they are a little smaller, as it follows their noise; against others a little larger,
by the noise of its parameters.

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
from probjax.types import Array, ArrayLike, Data, Float, PyTree, State

CHUNK = 256

_product = partial(jnp.tensordot, axes=1, precision="highest")


class Comparison(NamedTuple):
    """The means of a statistic over data and model, entry by entry.

    >>> parts = ([0.5, 0.9], [0.5, 0.5], [0.1, 0.1], [0.0, 4.0])
    >>> Comparison(*map(np.array, parts)).describe().split(" (")[0]
    '1 of 2 entries differ by more than 3 standard errors'
    """

    observed: Float[Array, "..."]
    """Its mean over the data."""
    expected: Float[Array, "..."]
    """Its mean under the model."""
    stderr: Float[Array, "..."]
    """The standard error of their difference."""
    z: Float[Array, "..."]
    """(observed - expected) / stderr; 0 where they are equal."""

    def describe(
        self, entries: ArrayLike | None = None, *, threshold: float = 3.0
    ) -> str:
        """How many entries differ, in words.

        Args:
            entries: what each entry is, as `triples(size)`; by default its index.
            threshold: in standard errors.
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
    """Means of a statistic over data and model, and whether they differ.

    The variance of a row is the mean of the data's and the model's. By that of one side
    alone, what it has never seen would seem certain not to be.

    Args:
        statistic: a function of one state, module-level as an energy is; what else it
            needs goes in as `jax.tree_util.Partial(function, array)`.
        data: rows, independent; weights are counts, 2 being two rows.
        model: draws `(chain, draw, ...)` of at least two chains, as `sample(...).x`,
            whose noise is seen from the spread of the chains' means, so that draws of
            one chain need not be independent (a dozen chains make it reliable); or a
            `Data` of states weighed by their probabilities, without noise.

    >>> rows = np.array([[0, 1], [1, 1], [1, 0], [1, 1]])
    >>> states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> found = compare(jnp.sum, rows, Data(states, np.full(4, 0.25)))
    >>> float(found.observed), float(found.expected), round(float(found.z), 2)
    (1.5, 1.0, 1.55)
    """
    data, model = _at_door(data, model)
    return _compared(Partial(_by_rows, Partial(statistic)), data, model)


def pair_frequencies(data: ArrayLike | Data, model: ArrayLike | Data) -> Comparison:
    """P(x_i = x_j = 1) for i <= j, in the order of `np.triu_indices`.

    As `compare` with the pairs of one state, but by matrix products, so that thousands
    of bits are no trouble. Letters come as bits one-hot.

    Args:
        data: as in `compare`, of one array of bits.
        model: likewise.

    >>> rows = np.array([[0, 1], [1, 1], [1, 0], [1, 1]])
    >>> states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> found = pair_frequencies(rows, Data(states, np.full(4, 0.25)))
    >>> found.observed.tolist(), found.expected.tolist()
    ([0.75, 0.5, 0.75], [0.5, 0.25, 0.5])
    """
    data, model = _at_door(data, model)
    if not (isinstance(data.x, jax.Array) and data.x.ndim == 2):
        raise ValueError(
            f"data must be (row, site), got shape {jax.tree.map(jnp.shape, data.x)}"
        )
    for x in (data.x, model.x if isinstance(model, Data) else model):
        binary(x)
    return _compared(Partial(_by_pairs), data, model)


def third_moments(data: ArrayLike | Data, model: ArrayLike | Data) -> Comparison:
    """<(x_i - m_i)(x_j - m_j)(x_k - m_k)> for i < j < k, in the order of `triples`.

    m are the data's means on both sides. An error e_i of m_i changes the difference of
    the two by -e_i times that of the covariances of j and k, which is nothing to first
    order where the pairs agree, so that m needs no noise of its own.

    Args:
        data: as in `compare`, of one array.
        model: likewise.

    >>> rows = np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])
    >>> states = np.array([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    >>> found = third_moments(rows, Data(states, np.full(8, 0.125)))
    >>> found.observed.tolist(), found.expected.tolist()
    ([-0.125], [0.0])
    """
    data, model = _at_door(data, model)
    if not (isinstance(data.x, jax.Array) and data.x.ndim == 2 and data.x.shape[1] > 2):
        raise ValueError(
            "third moments need rows of at least 3 sites, "
            f"got shape {jax.tree.map(jnp.shape, data.x)}"
        )
    return _compared(Partial(_by_triples, _centre(data)), data, model)


@jax.jit
def _centre(data):
    # From the first row, so that a mean far from 0 loses no digits.
    first = data.x[:1]
    return first[0] + jnp.average(data.x - first, axis=0, weights=data.weights)


def population_count(data: PyTree | Data, model: PyTree | Data) -> Comparison:
    """P(K = k) for k = 0 to d, K being how many of the d bits of a state are 1.

    Args:
        data: as in `compare`, of bits.
        model: likewise.

    >>> rows = np.array([[0, 1], [1, 1], [1, 0], [1, 1]])
    >>> states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> found = population_count(rows, Data(states, np.full(4, 0.25)))
    >>> found.observed.tolist(), found.expected.tolist()
    ([0.0, 0.5, 0.5], [0.25, 0.5, 0.25])
    """
    data, model = _at_door(data, model)
    for x in (data.x, model.x if isinstance(model, Data) else model):
        binary(x)
    return _compared(Partial(_by_rows, Partial(_population)), data, model)


def triples(size: int) -> np.ndarray:
    """The sites i < j < k of each third moment, `(triple, 3)`.

    >>> triples(4).tolist()
    [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]]
    """
    return np.array(list(combinations(range(size), 3)), np.int32)


class _Moments(NamedTuple):
    total: Array
    mean: Array
    variance: Array


@jax.jit
def _compared(block, data, model):
    weights = data.weights
    if weights is None:
        weights = jnp.ones(num_rows(data), float_dtype(data.x))
    seen = _over_rows(block, data.x, weights)
    drawn, noise = _of_model(block, model)
    unbiased = seen.variance * seen.total / (seen.total - 1)
    of_row = (unbiased + drawn.variance) / 2
    stderr = jnp.sqrt(of_row / seen.total + noise)
    difference = seen.mean - drawn.mean
    # Where nothing varies there is no noise to tell rounding from a difference.
    scale = jnp.maximum(jnp.abs(seen.mean), jnp.abs(drawn.mean))
    equal = jnp.abs(difference) <= 4 * jnp.finfo(scale.dtype).eps * scale
    z = jnp.where(equal, 0, difference) / jnp.where(equal, 1, stderr)
    return Comparison(seen.mean, drawn.mean, stderr, z)


def _of_model(block, model):
    """Moments under the model, and the variance of the mean as an estimate."""
    if isinstance(model, Data):
        return _over_rows(block, model.x, model.weights), 0.0
    draws = jax.tree.leaves(model)[0].shape[1]
    ones = jnp.ones(draws, float_dtype(model))

    def add(carry, chain):
        together, means = carry
        found = _over_rows(block, chain, ones)
        alone = _Moments(jnp.ones_like(found.total), found.mean, 0 * found.variance)
        return (_merged(together, found), _merged(means, alone)), None

    first = jax.tree.map(lambda leaf: leaf[0], model)
    nothing = _nothing(partial(_over_rows, block), first, ones)
    (together, means), _ = jax.lax.scan(add, (nothing, nothing), model)
    return together, means.variance / (means.total - 1)


def _over_rows(block, x, weights):
    """Moments over weighted rows, a few at a time, `block(x, weights)` of each few."""
    count = len(weights)
    size = min(count, CHUNK)

    def add(i, before):
        return _merged(before, block(*cut_chunk(i, size, x, weights)))

    some = jax.tree.map(lambda leaf: leaf[:size], (x, weights))
    return jax.lax.fori_loop(0, -(-count // size), add, _nothing(block, *some))


def _nothing(block, x, weights):
    shapes = jax.eval_shape(block, x, weights)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _merged(first, second):
    """The moments of both together, squares of what is far from 0 never taken."""
    total = first.total + second.total
    share = second.total / jnp.where(total > 0, total, 1)
    change = second.mean - first.mean
    within = first.variance + share * (second.variance - first.variance)
    variance = within + share * (1 - share) * change**2
    return _Moments(total, first.mean + share * change, variance)


def _by_rows(statistic, x, weights):
    values = jax.vmap(statistic)(x).astype(weights.dtype)
    total, shares = _shares(weights)
    # From the first on, lest the mean of equal values differ from them by rounding.
    mean = values[0] + _product(shares, values - values[:1])
    return _Moments(total, mean, _product(shares, (values - mean[None]) ** 2))


def _by_pairs(x, weights):
    """A product of two bits is a bit, whose mean tells its variance."""
    total, shares = _shares(weights)
    mean = _product((shares[:, None] * x).T, x)[np.triu_indices(x.shape[1])]
    return _Moments(total, mean, jnp.maximum(mean * (1 - mean), 0))


def _by_triples(centre, x, weights):
    """Pairs times sites is one matrix product, a third of which are the triples."""
    size = len(centre)
    total, shares = _shares(weights)
    apart = x - centre[None]
    first, second = np.triu_indices(size, 1)
    pair = np.zeros((size, size), np.int32)
    pair[first, second] = np.arange(len(first))
    i, j, k = triples(size).T

    def mean(values):
        pairs = values[:, first] * values[:, second]
        return _product((shares[:, None] * pairs).T, values)[pair[i, j], k]

    found = mean(apart)
    return _Moments(total, found, jnp.maximum(mean(apart**2) - found**2, 0))


def _shares(weights):
    total = weights.sum()
    return total, weights / jnp.where(total > 0, total, 1)


def _population(x):
    flat, _ = ravel_pytree(x)
    counts = jnp.arange(flat.size + 1, dtype=flat.dtype)
    return (counts == flat.sum()).astype(flat.dtype)


def _at_door(data, model):
    """Both as floating arrays; trouble is one `ValueError`."""
    data = as_data(data)
    if data.mask is not None:
        raise ValueError("data must be complete: leave out rows with missing entries")
    data = data._replace(x=jax.tree.map(floating, data.x))
    rows = num_rows(data) if data.weights is None else data.weights.sum()
    if is_concrete(rows) and not rows >= 2:
        raise ValueError(
            f"data must be at least two rows, got {rows}: their weights are counts"
        )
    model = _weighed(model) if isinstance(model, Data) else _drawn(model)
    # Rows follow one leading axis in the data and in states, two in draws.
    states = _shapes(*((model.x, 1) if isinstance(model, Data) else (model, 2)))
    if states != _shapes(data.x, 1):
        raise ValueError(
            f"model must have states like the data's, of shape {_shapes(data.x, 1)}, "
            f"got {states}"
        )
    return data, model


def _weighed(model):
    model = as_data(model)
    total = 0 if model.weights is None else model.weights.sum()
    if is_concrete(total) and not abs(total - 1) < 1e-3:
        raise ValueError(
            "a model's states must have their probabilities as weights, "
            f"got a sum of {total}"
        )
    return model._replace(x=jax.tree.map(floating, model.x))


def _drawn(model):
    model = jax.tree.map(floating, as_data(model).x)
    if any(leaf.ndim < 2 or len(leaf) < 2 for leaf in jax.tree.leaves(model)):
        raise ValueError(
            "model must be draws (chain, draw, ...) of at least two chains, "
            f"got shape {_shapes(model, 0)}"
        )
    return model


def _shapes(tree, after):
    return jax.tree.map(lambda leaf: leaf.shape[after:], tree)
