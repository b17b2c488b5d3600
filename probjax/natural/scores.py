"""Metrics on parameters, from jacobians.

A metric is G = A'A, where A has a row for each row of data, times the root of its
weight: the derivative of some number with respect to all parameters, its *score*.

    log q(x)      over draws of q: the Fisher matrix; over data: an approximation to it;
    E(x)          less its mean over rows, over draws: the Fisher matrix again, as
                  d log q = -(dE - <dE>), and no log Z is needed; over data: an
                  approximation, and the thesis' without the mean taken off;
    a loss        of a row, for what is not probabilistic;
    f(x)          a vector, for the squared error |y - f(x)|^2: G = 2 <df' df>, as of a
                  Gaussian whose variance is 1/2.

Which rows these are is up to whoever gives them: see `natural_gradient`.

Products with G, and whether A is held in memory, are in `probjax.natural.operators`.

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
from probjax.natural.operators import Known, Linear, RowTable, times_rows, weighed
from probjax.natural.streamed import Streamed, jacobian, row_shape, stream
from probjax.recipe import recipe, static
from probjax.trees import cast_floats, float_dtype
from probjax.types import Array, Data, Energy, Float, Params, PyTree, Scalar, State


class MetricSource(abc.ABC):
    """Definition of a metric: `Scores`, `Given` or `Metric`."""

    has_rows: ClassVar[bool] = True
    """Whether the metric is G = A'A with known rows of A."""

    @abc.abstractmethod
    def linear(self, params: Params, data: Data, chunk_size: int | None) -> Linear:
        """Metric at `params`, averaged over the rows of `data`."""

    def with_centred(self, centred: bool) -> "MetricSource":
        """Copy that subtracts the mean score or does not, if there are scores."""
        return self

    def in_coordinates(
        self, to_params: Callable[[PyTree], Params]
    ) -> "MetricSource | None":
        """Metric of the coordinates of a chart; None if it cannot be derived."""
        return None

    def max_rank(self, params: Params, data: Data) -> int:
        """Upper bound of the rank of the metric, from the shapes of its arguments."""
        return _size(params)


@recipe
class Scores(MetricSource):
    """Derivatives of a function of one row.

    Args:
        function: `function(params, row)`: a number, or a vector of them.
        centred: whether their mean over the rows is taken off.
        scale: the metric is this many times their mean square.

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
        """The scores themselves, neither centred nor weighed, a row each."""
        leaves = jax.tree.leaves(self.table(params, as_data(data).x))
        return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], 1)

    def values(self, params: Params, x: PyTree) -> Array:
        """Values of `function`, `(row, ...)`."""
        return jax.vmap(self.function, (None, 0))(params, x)

    def shape(self, params: Params, x: PyTree) -> tuple[int, ...]:
        """Shape of the result of `function` for one row."""
        shape = row_shape(self.function, params, x)
        if len(shape) > 1 or (shape and self.centred):
            raise ValueError(
                "the function of scores must return a number for a row"
                f"{'' if self.centred else ', or a vector'}, got shape {shape}"
            )
        return shape

    def table(self, params: Params, x: PyTree) -> PyTree:
        """Scores with leaves `(row, *leaf)`; for a vector, a row per entry."""
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
    """Scores that a user computes, by a function of all rows.

    Args:
        function: `function(params, data)`: an array `(row, n)`, its columns in the
            order of `ravel_pytree(params)`. Weights of rows are not its business.

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
        """Scores with leaves `(row, *leaf)`."""
        rows = self.function(params, Data(x))
        leaves, form = jax.tree.flatten(params)
        sizes = [leaf.size for leaf in leaves]
        count = num_rows(Data(x))
        if jnp.shape(rows) != (count, sum(sizes)):
            raise ValueError(
                f"scores must return an array of {count} rows and {sum(sizes)} "
                f"parameters, got shape {jnp.shape(rows)}"
            )
        parts = jnp.split(rows, [sum(sizes[:k]) for k in range(1, len(sizes))], axis=1)
        shaped = zip(parts, leaves, strict=True)
        return form.unflatten([p.reshape(-1, *leaf.shape) for p, leaf in shaped])

    def linear(self, params: Params, data: Data, chunk_size: int | None) -> RowTable:
        x, weights = _prepared(params, data)
        table = self.table(params, x)
        mean = times_rows(table, weights) if self.centred else None
        return weighed(table, mean, weights * jnp.asarray(self.scale, weights.dtype))

    def with_centred(self, centred: bool) -> "Given":
        return dataclasses.replace(self, centred=centred)

    def max_rank(self, params: Params, data: Data) -> int:
        return num_rows(data) - self.centred


@recipe
class Metric(MetricSource):
    """A metric that a user computes.

    Args:
        function: `function(params, data)`: the matrix G, in the order of
            `ravel_pytree(params)`.

    >>> from probjax.natural import metric
    >>> def ours(params, data):
    ...     return jnp.diag(jnp.array([1.0, 4.0]))
    >>> metric(Metric(ours), jnp.zeros(2), jnp.zeros((1, 2))).tolist()
    [[1.0, 0.0], [0.0, 4.0]]
    """

    function: Callable[[Params, Data], Float[Array, "n n"]] = static()

    has_rows: ClassVar[bool] = False

    def linear(self, params: Params, data: Data, chunk_size: int | None) -> Known:
        matrix, size = jnp.asarray(self.function(params, data)), _size(params)
        if jnp.shape(matrix) != (size, size):
            raise ValueError(
                f"a metric of {size} parameters must be {size} x {size}, got shape "
                f"{jnp.shape(matrix)}"
            )
        return Known(matrix, params)


def as_scores(scores: Any, centred: bool | None = None) -> MetricSource:
    """Return `scores`, or a user's function as `Given`, centred or not if specified."""
    if not isinstance(scores, MetricSource):
        if isinstance(scores, type) or not callable(scores):
            raise ValueError(
                "scores must be energy_scores(energy), or a function of params and "
                f"data, got {scores!r}; try energy_scores(energy)"
            )
        scores = Given(scores)  # pyright: ignore[reportArgumentType]
    return scores if centred is None else scores.with_centred(centred)


def energy_scores(energy: Energy, *, centred: bool = True) -> Scores:
    """Derivatives of E(x), less its mean over the rows.

    Over draws of the model that is the Fisher matrix. Without the mean taken off it is
    the thesis' energy approximation, which adds a direction that slows learning.

    >>> from probjax import ising
    >>> params = ising.from_matrix([[0.0, 0.0], [0.0, 0.0]])
    >>> scores = energy_scores(ising.energy)
    >>> scores(params, jnp.array([[1.0, 0.0], [1.0, 1.0]])).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 2.0]]
    """
    return Scores(energy, centred=centred)


def likelihood_scores(log_prob: Callable[[Params, State], Scalar]) -> Scores:
    """Derivatives of log q(x), of a model that can be normalised.

    >>> def log_prob(mean, x):
    ...     return -jnp.sum((x - mean) ** 2) / 2
    >>> scores = likelihood_scores(log_prob)
    >>> scores(jnp.ones(1), jnp.array([[1.0], [3.0]])).tolist()
    [[0.0], [2.0]]
    """
    return Scores(log_prob)


def loss_scores(loss: Callable[[Params, State], Scalar]) -> Scores:
    """The derivative of any loss of a row, for models that are not probabilistic.

    >>> def loss(params, x):
    ...     return jnp.sum(params * x)
    >>> loss_scores(loss)(jnp.zeros(2), jnp.array([[1.0, 2.0]])).tolist()
    [[1.0, 2.0]]
    """
    return Scores(loss)


def regression_scores(function: Callable[[Params, State], Array]) -> Scores:
    """Of predictions f(params, row), a vector, under the squared error |y - f|^2.

    >>> from probjax.natural import metric
    >>> def predict(weight, x):
    ...     return weight * x
    >>> scores = regression_scores(predict)
    >>> metric(scores, jnp.ones(2), jnp.array([[1.0, 3.0]])).round().tolist()
    [[2.0, 0.0], [0.0, 18.0]]
    """
    return Scores(function, scale=2.0)


def _prepared(params, data):
    """Rows in the dtype of the parameters, and their weights with sum 1."""
    kind = float_dtype(params)
    weights = data.weights
    weights = jnp.ones(num_rows(data)) if weights is None else weights
    return cast_floats(kind, data.x), weights.astype(kind) / weights.sum().astype(kind)


def _size(params):
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
