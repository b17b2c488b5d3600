"""Fits to many data sets: bootstrap, tests against shuffled data, simulate and refit.

`refit_many` calls one function, which fits and returns numbers, on data sets that
another function draws:

| `draw` | the spread of the refits is |
| --- | --- |
| `resampled(data)` | the bootstrap error of independent rows |
| `resampled(data, clusters=...)` | that of independent blocks of correlated rows |
| draws of the fitted model | the parametric bootstrap error; their mean has the bias |
| surrogates, such as `spikes.shuffled` | what chance alone makes of the numbers |

Unlike `uncertainty`, these errors hold for any estimator and any number computed from
it, far from the limit of many rows, and they cost as many fits.

Reference: Efron and Tibshirani, An Introduction to the Bootstrap (1993).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax import random
from probjax.checks import check_count, check_key
from probjax.data.clusters import row_clusters
from probjax.data.rows import as_data, num_rows
from probjax.trees import as_array
from probjax.types import ArrayLike, Data, PRNGKeyArray, PyTree


class Refits(NamedTuple):
    """Numbers from fits to many data sets; `refit_many` returns them.

    >>> found = Refits(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> float(found.mean), round(float(found.stderr), 3), float(found.z(5.0).round(2))
    (2.5, 1.291, 1.94)
    """

    values: PyTree
    """Results of all refits, leaves `(refit, ...)`."""

    @property
    def num_refits(self) -> int:
        """Number of refits."""
        return len(jax.tree.leaves(self.values)[0])

    @property
    def mean(self) -> PyTree:
        """Mean over refits."""
        return self.map(lambda values: values.mean(0))

    @property
    def stderr(self) -> PyTree:
        """Standard deviation over refits: the standard error of one fit."""
        return self.map(lambda values: values.std(0, ddof=1))

    def interval(self, level: float = 0.95) -> tuple[PyTree, PyTree]:
        """Return the ends of the interval that contains this share of the refits."""
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level}; try 0.95")
        tail = (1 - level) / 2
        return (
            self.map(lambda values: np.quantile(values, tail, axis=0)),
            self.map(lambda values: np.quantile(values, 1 - tail, axis=0)),
        )

    def z(self, estimate: PyTree) -> PyTree:
        """Return how far an estimate is from the mean of the refits, in their spread.

        If the refits are those of shuffled data, an entry beyond 3 or so is unlikely by
        chance.
        """
        return jax.tree.map(
            lambda value, mean, stderr: (np.asarray(value) - mean) / stderr,
            estimate,
            self.mean,
            self.stderr,
        )

    def p_value(self, estimate: PyTree) -> PyTree:
        """Return the share of refits at least as far from their median as an estimate.

        The estimate itself counts as one of them, so that the share is never 0.
        """

        def share(value, values):
            middle = np.median(values, axis=0)
            far = np.abs(values - middle) >= np.abs(np.asarray(value) - middle)
            return (1 + far.sum(0)) / (1 + len(values))

        return jax.tree.map(share, estimate, self.values)

    def map(self, function: Callable[[np.ndarray], Any]) -> PyTree:
        """Apply a function to the values of each leaf, `(refit, ...)`."""
        return jax.tree.map(function, self.values)

    def describe(self) -> str:
        """Describe how many refits and numbers there are."""
        shapes = [leaf.shape[1:] for leaf in jax.tree.leaves(self.values)]
        count = sum(int(np.prod(shape)) for shape in shapes)
        return f"{self.num_refits:,} refits of {count:,} numbers"


def refit_many(
    key: PRNGKeyArray,
    refit: Callable[[PRNGKeyArray, Any], PyTree],
    draw: Callable[[PRNGKeyArray], Any],
    *,
    num_refits: int = 100,
) -> Refits:
    """Draw data sets, and collect the numbers that a fit of each returns.

    If all data sets have one shape, the fits share their compiled programs.

    Args:
        refit: function of a key and a data set that returns numbers, such as
            `lambda key, data: fit(key, objective, start, data).params`.
        draw: function of a key that returns a data set; see `probjax.fitting.refits`.
        num_refits: number of data sets.

    >>> def mean(key, data):
    ...     return jnp.average(data.x, axis=0, weights=data.weights)
    >>> rows = np.arange(100.0).reshape(-1, 1)
    >>> found = refit_many(jax.random.key(0), mean, resampled(rows), num_refits=200)
    >>> bool(abs(found.stderr[0] / (rows.std() / 10) - 1) < 0.2)
    True
    """
    check_key(key)
    check_count("num_refits", num_refits, least=2)
    for name, function in (("refit", refit), ("draw", draw)):
        if not callable(function):
            raise ValueError(
                f"{name} must be a function, got {type(function).__name__}; see "
                "refit_many for examples"
            )
    found = []
    for number in range(num_refits):
        draw_key, fit_key = random.split(random.fold_in(key, number), 2)
        values = refit(fit_key, draw(draw_key))
        found.append(jax.tree.map(np.asarray, values))
    return Refits(jax.tree.map(lambda *leaves: np.stack(leaves), *found))


def resampled(
    data: ArrayLike | Data, *, clusters: ArrayLike | None = None
) -> Callable[[PRNGKeyArray], Data]:
    """Return a function of a key that draws as many rows with replacement.

    Rows stay in place and their weights become the numbers of times that they are
    drawn, so that all data sets have one shape. Weights of the data must be counts.

    Args:
        clusters: a number for each row. Clusters are drawn as a whole, as rows of one
            may be correlated: `np.arange(num_rows) // 500` for blocks of a recording.

    >>> draw = resampled(np.eye(4), clusters=[0, 0, 1, 1])
    >>> sorted(set(draw(jax.random.key(2)).weights.tolist())) in ([0.0, 2.0], [1.0])
    True
    """
    data = as_data(data)
    count = num_rows(data)
    weights = np.ones(count) if data.weights is None else np.asarray(data.weights)
    if not (weights == np.round(weights)).all():
        raise ValueError(
            "weights must be counts for a bootstrap, got numbers that are not whole; "
            "try the rows without weights"
        )
    if clusters is None:
        # Each row as often as it is drawn, instead of as often as it occurs.
        labels, times = np.arange(count), np.ones(count)
        total, chances = int(weights.sum()), weights / weights.sum()
    else:
        found = row_clusters(clusters, count)
        labels, times = np.asarray(found.labels), weights
        total = found.num_clusters
        chances = np.full(total, 1 / total)

    def draw(key: PRNGKeyArray) -> Data:
        counts = random.numpy_generator(key).multinomial(total, chances)
        drawn = times * counts[labels]
        return data._replace(weights=as_array(drawn, jnp.result_type(float)))

    return draw
