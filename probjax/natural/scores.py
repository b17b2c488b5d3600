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

How G is then made use of, and A held or not, is in `probjax.natural.linear`.

Reference: thesis, "The Natural Gradient by Analogy to Signal Whitening", recipes;
Amari, Neural Computation 10, 251 (1998).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from probjax.data import as_data, num_rows
from probjax.types import (
    Array,
    Data,
    Energy,
    Float,
    Params,
    PyTree,
    Scalar,
    State,
    recipe,
    static,
)


@recipe
class Scores:
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
        """What is differentiated, `(row, ...)`."""
        return jax.vmap(self.function, (None, 0))(params, x)

    def shape(self, params: Params, x: PyTree) -> tuple[int, ...]:
        """Of what is differentiated, for one row."""
        row = jax.tree.map(lambda rows: rows[0], x)
        shape = jax.eval_shape(self.function, params, row).shape
        if len(shape) > 1 or (shape and self.centred):
            raise ValueError(
                "the function of scores must return a number for a row"
                f"{'' if self.centred else ', or a vector'}, got shape {shape}"
            )
        return shape

    def table(self, params: Params, x: PyTree) -> PyTree:
        """The scores, leaves `(row, *leaf)`; of a vector, as many rows as it has."""
        shape = self.shape(params, x)
        derive = jax.grad if shape == () else jax.jacrev
        jacobian = jax.vmap(derive(self.function), (None, 0))(params, x)

        def joined(leaf, like):
            return leaf.reshape(-1, *jnp.shape(like))

        return jax.tree.map(joined, jacobian, params)


@recipe
class Given:
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
        """As that of `Scores`."""
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


@recipe
class Metric:
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


AnyScores = Scores | Given | Metric


def as_scores(scores: Any, centred: bool | None = None) -> AnyScores:
    """`scores`, or a user's function as `Given`; centred or not, as asked for."""
    if not isinstance(scores, AnyScores):
        if not callable(scores):
            raise ValueError(
                "scores must be energy_scores(energy), or a function of params and "
                f"data, got {type(scores).__name__}"
            )
        scores = Given(scores)  # pyright: ignore[reportArgumentType]
    if centred is None or isinstance(scores, Metric):
        return scores
    return dataclasses.replace(scores, centred=centred)


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
