"""The matrix A of a metric G = A'A, and what can be done with it.

Table       A itself, leaf by leaf of the parameters, (row, *leaf);
Streamed    A of a large model: made in chunks of rows where it is needed, and its
            products by derivatives along a direction or back from the rows;
Known       G, as a matrix that a user gives.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.data import as_data, num_rows, refuse_mask
from probjax.fitting import of_kind
from probjax.natural.scores import AnyScores, Given, Metric, Scores, as_scores
from probjax.rows import cut_chunk
from probjax.types import (
    Array,
    Data,
    Float,
    Params,
    PyTree,
    Scalar,
    check_count,
    float_dtype,
    recipe,
    static,
)

MOST_ENTRIES, CHUNK_ENTRIES, MOST_PARAMETERS = 2**27, 2**24, 2**14
Groups = tuple[tuple[int, ...], ...]


class Linear(Protocol):
    """A metric at some parameters."""

    def squares(self, groups: Groups) -> tuple[Array, ...]:
        """Blocks of G, each over some leaves of the parameters."""
        ...

    def diagonal(self) -> PyTree:
        """The diagonal of G, a tree like the parameters."""
        ...

    def times(self, tree: PyTree) -> PyTree:
        """G times a tree like the parameters."""
        ...


def metric(
    scores: AnyScores | Callable[[Params, Data], Array],
    params: Params,
    data: PyTree | Data,
    *,
    centred: bool | None = None,
    chunk_size: int | None = None,
) -> Float[Array, "n n"]:
    """The metric itself, a matrix in the order of `ravel_pytree(params)`.

    Args:
        scores: which: `energy_scores(energy)`, or one's own.
        data: rows, with weights if they have any: data, or draws of the model, or all
            of its states weighted by their probabilities.
        centred: whether the mean score is taken off; None as `scores` have it.
        chunk_size: rows at a time.

    >>> from probjax import exact, ising
    >>> from probjax.natural import energy_scores
    >>> flat = ising.from_matrix([[0.0, 0.0], [0.0, 0.0]])
    >>> found = metric(energy_scores(ising.energy), flat, exact.states(2))
    >>> bool(jnp.allclose(found.diagonal(), jnp.array([0.25, 0.25, 0.75]), atol=1e-4))
    True
    """
    scores, data = as_scores(scores, centred), as_data(data)
    refuse_mask(data, "scores are of complete rows")
    check_fits(sum(jnp.size(leaf) for leaf in jax.tree.leaves(params)))
    return _metric(scores, params, data, chunk_size)


@partial(jax.jit, static_argnums=3)
def _metric(scores, params, data, chunk_size):
    linear = linearised(scores, params, data, chunk_size=chunk_size)
    (whole,) = linear.squares((tuple(range(len(jax.tree.leaves(params)))),))
    return whole


def check_fits(size: int) -> None:
    """Refuse a metric that is too large to be a matrix."""
    if size > MOST_PARAMETERS:
        raise ValueError(
            f"a metric of {size:,} parameters has {size**2:.1e} entries: use LowRank() "
            "for few rows, ConjugateGradient(), Diagonal(), or smaller Blocks"
        )


def linearised(
    scores: AnyScores | Callable[[Params, Data], Array],
    params: Params,
    data: PyTree | Data,
    *,
    centred: bool | None = None,
    chunk_size: int | None = None,
) -> "Known | Streamed | Table":
    """The metric at `params`, over the rows of `data`."""
    scores, data = as_scores(scores, centred), as_data(data)
    refuse_mask(data, "scores are of complete rows")
    if isinstance(scores, Metric):
        return _known(scores, params, data)
    kind = float_dtype(params)
    x = of_kind(kind, data.x)
    weights = data.weights
    weights = jnp.ones(num_rows(data)) if weights is None else weights
    weights = weights.astype(kind) / weights.sum().astype(kind)
    shares = weights * jnp.asarray(scores.scale, kind)
    if isinstance(scores, Given):
        table = scores.table(params, x)
        mean = times_rows(table, weights) if scores.centred else None
        return _weighed(table, mean, shares)
    outputs = sum(scores.shape(params, x)) or 1
    chunk = _chunk_size(chunk_size, params, len(weights), outputs)
    entries = len(weights) * outputs * sum(map(jnp.size, jax.tree.leaves(params)))
    hold = chunk_size is None and entries <= MOST_ENTRIES
    streamed = Streamed(scores, params, x, shares, None, chunk, outputs, hold)
    if not scores.centred:
        return streamed
    return dataclasses.replace(streamed, mean=streamed.pulled(weights[:, None]))


@recipe
class Known:
    """G as a matrix."""

    matrix: Float[Array, "n n"]
    params: Params

    def squares(self, groups: Groups) -> tuple[Array, ...]:
        sizes = [leaf.size for leaf in jax.tree.leaves(self.params)]
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]

        def block(group):
            spans = [jnp.arange(ends[k] - sizes[k], ends[k]) for k in group]
            places = jnp.concatenate(spans)
            return self.matrix[places[:, None], places[None, :]]

        return tuple(block(group) for group in groups)

    def diagonal(self) -> PyTree:
        return self._tree(jnp.diagonal(self.matrix))

    def times(self, tree: PyTree) -> PyTree:
        return self._tree(self.matrix @ ravel_pytree(tree)[0])

    def _tree(self, flat):
        return ravel_pytree(self.params)[1](flat)


@recipe
class Table:
    """A, leaves `(row, *leaf)`."""

    rows: PyTree

    def squares(self, groups: Groups) -> tuple[Array, ...]:
        leaves = jax.tree.leaves(self.rows)

        def block(group):
            flat = jnp.concatenate([_flat(leaves[k]) for k in group], axis=1)
            return flat.T @ flat

        return tuple(block(group) for group in groups)

    def diagonal(self) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.sum(leaf**2, 0), self.rows)

    def times(self, tree: PyTree) -> PyTree:
        return self.back(self.along(tree))

    def gram(self) -> Float[Array, "row row"]:
        """AA'."""
        flats = map(_flat, jax.tree.leaves(self.rows))
        return reduce(jnp.add, [flat @ flat.T for flat in flats])

    def along(self, tree: PyTree) -> Float[Array, " row"]:
        """A times a tree like the parameters."""
        pairs = zip(jax.tree.leaves(self.rows), jax.tree.leaves(tree), strict=True)
        return reduce(jnp.add, [_flat(leaf) @ jnp.ravel(part) for leaf, part in pairs])

    def back(self, rows: Float[Array, " row"]) -> PyTree:
        """A' times a number a row."""
        return times_rows(self.rows, rows)

    def held(self) -> "Table":
        return self

    @property
    def num_rows(self) -> int:
        """Of A."""
        return len(jax.tree.leaves(self.rows)[0])


@recipe
class Streamed:
    """A by its rows, a chunk at a time: scores, centred if they are, and weighed."""

    scores: Scores
    params: Params
    x: PyTree
    weights: Float[Array, " row"]
    """That sum to the scale of the metric."""
    mean: PyTree | None
    """Of the scores, where it is taken off."""
    chunk: int = static()
    outputs: int = static()
    """Rows of A for one of the data."""
    hold: bool = static()
    """Whether A may be held where that is of use."""

    def squares(self, groups: Groups) -> tuple[Array, ...]:
        return self._summed(lambda table: table.squares(groups))

    def diagonal(self) -> PyTree:
        return self._summed(Table.diagonal)

    def times(self, tree: PyTree) -> PyTree:
        return self.back(self.along(tree))

    def gram(self) -> Float[Array, "row row"]:
        """AA', of which a chunk of rows at a time is held."""

        def products(row):
            table = self._table(*jax.tree.map(lambda leaf: leaf[None], row))
            return jax.vmap(self.along)(table.rows)

        found = jax.lax.map(products, (self.x, self.weights), batch_size=self.chunk)
        return found.reshape(self.num_rows, self.num_rows)

    def along(self, tree: PyTree) -> Float[Array, " row"]:
        """A times a tree like the parameters."""

        def slope(x):
            def value(params):
                return self.scores.function(params, x)

            return jnp.ravel(jax.jvp(value, (self.params,), (tree,))[1])

        slopes = jax.lax.map(slope, self.x, batch_size=self.chunk)
        if self.mean is not None:
            slopes = slopes - _dot(self.mean, tree)
        return (jnp.sqrt(self.weights)[:, None] * slopes).reshape(-1)

    def back(self, rows: Float[Array, " row"]) -> PyTree:
        """A' times a number a row."""
        each = jnp.sqrt(self.weights)[:, None] * rows.reshape(-1, self.outputs)
        pulled = self.pulled(each)
        if self.mean is None:
            return pulled
        total = each.sum()
        return jax.tree.map(lambda leaf, mean: leaf - total * mean, pulled, self.mean)

    def pulled(self, each: Float[Array, "row output"]) -> PyTree:
        """The sum of scores, neither centred nor weighed, times a number each."""

        def part(x, each):
            def values(params):
                found = jax.vmap(self.scores.function, (None, 0))(params, x)
                return found.reshape(each.shape)

            found, pull = jax.vjp(values, self.params)
            return pull(each.astype(found.dtype))[0]

        if self.chunk >= len(self.weights):
            return part(self.x, each)

        def add(i, total):
            (x, mine), new = cut_chunk(i, self.chunk, (self.x, each), counted)
            return jax.tree.map(jnp.add, total, part(x, mine * new[:, None]))

        counted = jnp.ones_like(self.weights)
        nothing = jax.tree.map(jnp.zeros_like, self.params)
        return jax.lax.fori_loop(0, self._num_chunks(), add, nothing)

    def held(self) -> "Table | Streamed":
        """A itself, if it may be."""
        return self._table(self.x, self.weights) if self.hold else self

    def _table(self, x, weights):
        roots = jnp.repeat(weights, self.outputs)
        return _weighed(self.scores.table(self.params, x), self.mean, roots)

    @property
    def num_rows(self) -> int:
        """Of A."""
        return len(self.weights) * self.outputs

    def _num_chunks(self):
        return -(-len(self.weights) // self.chunk)

    def _summed(self, part):
        if self.chunk >= len(self.weights):
            return part(self._table(self.x, self.weights))

        def add(i, total):
            table = self._table(*cut_chunk(i, self.chunk, self.x, self.weights))
            return jax.tree.map(jnp.add, total, part(table))

        shapes = jax.eval_shape(lambda: part(self._table(self.x, self.weights)))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, self._num_chunks(), add, nothing)


def times_rows(table: PyTree, rows: Float[Array, " row"]) -> PyTree:
    """The sum over rows of a table, leaves `(row, *leaf)`, times a number each."""

    def summed(leaf):
        return (rows.astype(leaf.dtype) @ _flat(leaf)).reshape(leaf.shape[1:])

    return jax.tree.map(summed, table)


def _weighed(table, mean, weights) -> Table:
    """Rows of a table with the mean taken off, times the roots of their weights."""

    def each(leaf, mean):
        roots = jnp.sqrt(weights).astype(leaf.dtype)
        return (leaf - mean[None]) * roots.reshape(-1, *[1] * (leaf.ndim - 1))

    if mean is None:
        mean = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), table)
    return Table(jax.tree.map(each, table, mean))


def _known(scores, params, data):
    matrix = scores.function(params, data)
    size = ravel_pytree(params)[0].size
    if jnp.shape(matrix) != (size, size):
        raise ValueError(
            f"a metric of {size} parameters must be {size} x {size}, got shape "
            f"{jnp.shape(matrix)}"
        )
    return Known(matrix, params)


def _chunk_size(chunk_size, params, count, outputs):
    if chunk_size is None:
        size = ravel_pytree(params)[0].size
        chunk_size = max(1, CHUNK_ENTRIES // (size * outputs))
    check_count("chunk_size", chunk_size)
    return min(chunk_size, count)


def _flat(leaf):
    return leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))


def _dot(first, second) -> Scalar:
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), first, second)
    return reduce(jnp.add, jax.tree.leaves(products))
