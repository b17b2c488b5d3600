"""Definitions of metrics on parameters, by scores.

The *score* of a row of data is the derivative of some number with respect to all
parameters. A metric is G = A'A, where each row of A is the score of a row of data times
the square root of its weight. The scores are derivatives of

    log q(x)      Averaged over draws from q, G is the Fisher matrix; averaged over
                  data, an approximation to it.
    E(x)          The mean score is subtracted. Averaged over draws, G is again the
                  Fisher matrix, because d log q = -(dE - <dE>), and log Z is not
                  needed. Averaged over data, G is an approximation; without
                  subtracting the mean, it is that of the thesis.
    a loss        For models that are not probabilistic.
    f(x)          A vector, for the squared error |y - f(x)|^2: G = 2 <df' df>, the
                  Fisher matrix of a Gaussian with variance 1/2.

The caller chooses the rows, see `natural_gradient`. `probjax.natural.operators` defines
products with G, and `probjax.natural.streamed` whether A is held in memory.

Reference: thesis, "The Natural Gradient by Analogy to Signal Whitening", recipes;
Amari, Neural Computation 10, 251 (1998).
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from probjax.data.rows import as_data, num_rows
from probjax.natural.operators import (
    MatrixOperator,
    MetricOperator,
    RowTable,
    weighted_row_sum,
    weighted_table,
)
from probjax.natural.streamed import Streamed, jacobian, row_shape, stream
from probjax.recipe import recipe, static
from probjax.trees import cast_floats, float_dtype
from probjax.types import Array, Data, Energy, Float, Params, PyTree, Scalar, State


class MetricSource(abc.ABC):
    """Definition of a metric: `Scores`, `Given` or `Metric`."""

    has_rows: ClassVar[bool] = True
    """Whether the metric is G = A'A with known rows of A."""

    @abc.abstractmethod
    def linear(
        self, params: Params, data: Data, chunk_size: int | None
    ) -> MetricOperator:
        """Return the metric at `params`, averaged over the rows of `data`."""

    def with_centred(self, centred: bool) -> "MetricSource":
        """Return a copy that subtracts the mean score or does not, if it has scores."""
        return self

    def in_coordinates(
        self, to_params: Callable[[PyTree], Params]
    ) -> "MetricSource | None":
        """Return the metric in the coordinates of a chart; None if that is unknown."""
        return None

    def max_rank(self, params: Params, data: Data) -> int:
        """Return an upper bound of the rank of the metric, from shapes alone."""
        return _size(params)


@recipe
class Scores(MetricSource):
    """Metric defined by derivatives of a function of one row.

    Args:
        function: `function(params, row)`, which returns a number or a vector.
        centred: whether the mean score over the rows is subtracted.
        scale: factor between the mean of s s' over scores s and the metric.

    >>> def linear(params, x):
    ...     return params @ x
    >>> scores, rows = Scores(linear), jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> scores(jnp.zeros(2), rows).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """

    function: Callable[[Params, State], Array] = static()
    centred: bool = static(default=False)
    scale: float = 1.0

    def __call__(self, params: Params, data: PyTree | Data) -> Float[Array, "row n"]:
        """Return the scores of all rows, without centring or weights."""
        leaves = jax.tree.leaves(self.table(params, as_data(data).x))
        return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], 1)

    def values(self, params: Params, x: PyTree) -> Array:
        """Return the values of `function` for all rows, `(row, ...)`."""
        return jax.vmap(self.function, (None, 0))(params, x)

    def shape(self, params: Params, x: PyTree) -> tuple[int, ...]:
        """Return the shape of the result of `function` for one row."""
        shape = row_shape(self.function, params, x)
        if len(shape) > 1 or (shape and self.centred):
            raise ValueError(
                "the function of Scores must return a number for a row"
                f"{'' if self.centred else ', or a vector'}, got shape {shape}"
            )
        return shape

    def table(self, params: Params, x: PyTree) -> PyTree:
        """Return scores with leaves `(row, *leaf)`; for a vector, a row per entry."""
        self.shape(params, x)
        return jacobian(self.function, params, x)

    def linear(self, params: Params, data: Data, chunk_size: int | None) -> Streamed:
        x, weights = _prepared(params, data)
        self.shape(params, x)
        return stream(
            self.function,
            params,
            x,
            weights,
            centred=self.centred,
            scale=jnp.asarray(self.scale, weights.dtype),
            chunk_size=chunk_size,
        )

    def with_centred(self, centred: bool) -> "Scores":
        return dataclasses.replace(self, centred=centred)

    def in_coordinates(self, to_params: Callable[[PyTree], Params]) -> "Scores":
        def function(point, x):
            return self.function(to_params(point), x)

        return dataclasses.replace(self, function=function)

    def max_rank(self, params: Params, data: Data) -> int:
        outputs = sum(self.shape(params, data.x)) or 1
        return num_rows(data) * outputs - self.centred


@recipe
class Given(MetricSource):
    """Metric defined by scores that a user's function computes for all rows.

    Args:
        function: `function(params, data)`, which returns an array `(row, n)` with
            columns in the order of `ravel_pytree(params)`. Row weights are applied by
            the caller.
        centred: whether the mean score over the rows is subtracted.
        scale: factor between the mean of s s' over scores s and the metric.

    >>> from probjax.natural import metric
    >>> def rows_themselves(params, data):
    ...     return data.x
    >>> rows = jnp.array([[1.0, 2.0], [-1.0, -2.0]])
    >>> metric(Given(rows_themselves), jnp.zeros(2), rows).round().tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """

    function: Callable[[Params, Data], Float[Array, "row n"]] = static()
    centred: bool = static(default=True)
    scale: float = 1.0

    def table(self, params: Params, x: PyTree) -> PyTree:
        """Return the scores with leaves `(row, *leaf)`."""
        rows = self.function(params, Data(x))
        leaves, form = jax.tree.flatten(params)
        sizes = [leaf.size for leaf in leaves]
        count = num_rows(Data(x))
        if jnp.shape(rows) != (count, sum(sizes)):
            raise ValueError(
                f"scores must return an array of {count} rows and {sum(sizes)} "
                f"columns, one per parameter, got shape {jnp.shape(rows)}"
            )
        parts = jnp.split(rows, [sum(sizes[:k]) for k in range(1, len(sizes))], axis=1)
        shaped = zip(parts, leaves, strict=True)
        return form.unflatten([p.reshape(-1, *leaf.shape) for p, leaf in shaped])

    def linear(self, params: Params, data: Data, chunk_size: int | None) -> RowTable:
        x, weights = _prepared(params, data)
        table = self.table(params, x)
        mean = weighted_row_sum(table, weights) if self.centred else None
        scale = jnp.asarray(self.scale, weights.dtype)
        return weighted_table(table, mean, weights * scale)

    def with_centred(self, centred: bool) -> "Given":
        return dataclasses.replace(self, centred=centred)

    def max_rank(self, params: Params, data: Data) -> int:
        return num_rows(data) - self.centred


@recipe
class Metric(MetricSource):
    """Metric that a user's function computes as a matrix.

    Args:
        function: `function(params, data)`, which returns the matrix G with rows and
            columns in the order of `ravel_pytree(params)`.

    >>> from probjax.natural import metric
    >>> def ours(params, data):
    ...     return jnp.diag(jnp.array([1.0, 4.0]))
    >>> metric(Metric(ours), jnp.zeros(2), jnp.zeros((1, 2))).tolist()
    [[1.0, 0.0], [0.0, 4.0]]
    """

    function: Callable[[Params, Data], Float[Array, "n n"]] = static()

    has_rows: ClassVar[bool] = False

    def linear(
        self, params: Params, data: Data, chunk_size: int | None
    ) -> MatrixOperator:
        matrix, size = jnp.asarray(self.function(params, data)), _size(params)
        if jnp.shape(matrix) != (size, size):
            raise ValueError(
                f"the metric of {size} parameters must be {size} x {size}, got shape "
                f"{jnp.shape(matrix)}"
            )
        return MatrixOperator(matrix, params)


def as_scores(scores: Any, centred: bool | None = None) -> MetricSource:
    """Return `scores` as a `MetricSource`; a function becomes a `Given`.

    Args:
        centred: whether the mean score is subtracted; None for the default of `scores`.
    """
    if not isinstance(scores, MetricSource):
        if isinstance(scores, type) or not callable(scores):
            raise ValueError(
                "scores must be energy_scores(...), another definition of a metric, or "
                f"a function of params and data, got {scores!r}; try "
                "energy_scores(energy)"
            )
        scores = Given(scores)  # pyright: ignore[reportArgumentType]
    return scores if centred is None else scores.with_centred(centred)


def energy_scores(energy: Energy, *, centred: bool = True) -> Scores:
    """Return the metric defined by derivatives of the energy E(x).

    Averaged over draws from the model, it is the Fisher matrix.

    Args:
        centred: whether the mean score over the rows is subtracted. If not, the metric
            is the energy approximation of the thesis, with an additional direction that
            slows learning.

    >>> from probjax import ising
    >>> params = ising.from_matrix([[0.0, 0.0], [0.0, 0.0]])
    >>> scores = energy_scores(ising.energy)
    >>> scores(params, jnp.array([[1.0, 0.0], [1.0, 1.0]])).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 2.0]]
    """
    return Scores(energy, centred=centred)


def likelihood_scores(log_prob: Callable[[Params, State], Scalar]) -> Scores:
    """Return the metric defined by derivatives of log q(x), for a normalised model.

    >>> def log_prob(mean, x):
    ...     return -jnp.sum((x - mean) ** 2) / 2
    >>> scores = likelihood_scores(log_prob)
    >>> scores(jnp.ones(1), jnp.array([[1.0], [3.0]])).tolist()
    [[0.0], [2.0]]
    """
    return Scores(log_prob)


def loss_scores(loss: Callable[[Params, State], Scalar]) -> Scores:
    """Return the metric defined by derivatives of the loss of a row.

    It is meant for models that are not probabilistic.

    >>> def loss(params, x):
    ...     return jnp.sum(params * x)
    >>> loss_scores(loss)(jnp.zeros(2), jnp.array([[1.0, 2.0]])).tolist()
    [[1.0, 2.0]]
    """
    return Scores(loss)


def regression_scores(function: Callable[[Params, State], Array]) -> Scores:
    """Return the metric of predictions f(params, row) with squared error |y - f|^2.

    Args:
        function: the predictions f, a vector.

    >>> from probjax.natural import metric
    >>> def predict(weight, x):
    ...     return weight * x
    >>> scores = regression_scores(predict)
    >>> metric(scores, jnp.ones(2), jnp.array([[1.0, 3.0]])).round().tolist()
    [[2.0, 0.0], [0.0, 18.0]]
    """
    return Scores(function, scale=2.0)


def _prepared(params, data):
    """Return rows in the dtype of the parameters, and their weights with sum 1."""
    dtype = float_dtype(params)
    weights = data.weights
    weights = jnp.ones(num_rows(data)) if weights is None else weights
    return cast_floats(dtype, data.x), weights.astype(dtype) / weights.sum().astype(
        dtype
    )


def _size(params):
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
