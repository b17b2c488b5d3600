"""Cross-validation of the strength of a penalty.

    score(s) = mean over folds of loss(theta(s) fitted to the other folds) on the fold

Rows of a fold are left out by setting their weights to zero, so that all fits run one
compiled program. Each fit starts from the fit at the previous strength. The score is a
loss without the penalty: of the fitted objective, or of another one, such as the exact
likelihood of a small model.

Folds of correlated rows must be made of whole clusters. If neighbouring rows of a
recording were in different folds, a weak penalty would be chosen, because its fit
repeats in one row what it has seen in the other.

Rows with missing entries are refused: their loss would depend on entries that are
imputed by the model that is compared, and a model predicts its own imputations best.

Reference: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning,
section 7.10.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count, is_concrete
from probjax.data.clusters import row_clusters
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.fitting.fit import loss
from probjax.fitting.path import RegularisationPath, fit_path
from probjax.fitting.stopping import StoppingRule
from probjax.interfaces import Chart, Objective, Penalty
from probjax.trees import known_values
from probjax.types import Array, ArrayLike, Data, Float, Params, PRNGKeyArray, PyTree


class Validation(NamedTuple):
    """Result of `cross_validate`.

    >>> strengths, ones = jnp.array([1.0, 0.1, 0.01]), jnp.ones(3)
    >>> path = RegularisationPath(strengths, jnp.zeros(3), ones, ones, ones)
    >>> found = Validation(jnp.array([[3.0, 1.0, 1.5], [5.0, 1.0, 1.5]]), path)
    >>> found.mean.tolist(), found.best
    ([4.0, 1.0, 1.5], 1)
    >>> print(found.describe())
    scores of 3 strengths on 2 folds
    best: strength 0.1 (index 1), score 1, 1 nonzero
    simplest within noise: strength 0.1 (index 1), score 1, 1 nonzero
    """

    scores: Float[Array, "fold n"]
    """Loss on each fold, without the penalty, of the fits to the other folds."""
    path: RegularisationPath
    """Fits to all data; `path.at(best)` are the selected parameters."""

    @property
    def strengths(self) -> Float[Array, " n"]:
        """Strengths of the penalty, in decreasing order."""
        return self.path.strengths

    @property
    def mean(self) -> Float[Array, " n"]:
        """Mean score over folds, for each strength."""
        return self.scores.mean(0)

    @property
    def best(self) -> int:
        """Index of the strength with the lowest mean score."""
        return int(jnp.argmin(self.mean))

    @property
    def simplest(self) -> int:
        """Index of the strongest penalty whose score is within noise of the best.

        The noise is one standard error, over folds, of the difference of the scores.
        """
        excess = self.scores - self.scores[:, self.best][:, None]
        stderr = excess.std(0, ddof=1) / np.sqrt(len(excess))
        return int(jnp.argmax(excess.mean(0) <= stderr))

    def describe(self) -> str:
        """Describe the best strength, and the strongest within noise of it."""
        num_folds, count = self.scores.shape
        lines = [f"scores of {count} strengths on {num_folds} folds"]
        if known_values(self.scores) is not None:
            lines += [
                f"best: {self._entry(self.best)}",
                f"simplest within noise: {self._entry(self.simplest)}",
            ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Validation: {self.describe()}"

    def _entry(self, i):
        return (
            f"strength {self.strengths[i]:.4g} (index {i}), score {self.mean[i]:.5g}, "
            f"{int(self.path.num_nonzero[i])} nonzero"
        )


def cross_validate(
    key: PRNGKeyArray,
    objective: Objective,
    params: Params,
    data: PyTree | Data,
    *,
    penalty: Penalty,
    score: Objective | None = None,
    num_folds: int = 5,
    clusters: ArrayLike | None = None,
    chart: Chart | None = None,
    strengths: Float[ArrayLike, " n"] | None = None,
    num_strengths: int = 30,
    smallest: float = 1e-3,
    steps_per_round: int = 2000,
    stop: StoppingRule | None = None,
) -> Validation:
    """Fit `objective` at every strength, to all data and to the data without each fold.

    Weights that are whole numbers are counts: the copies of a row are assigned to folds
    one by one, as if the rows were repeated. With other weights, each row is assigned
    to one fold.

    Args:
        penalty: as for `fit_path`, and so are the arguments that are not listed here.
            If `strengths` is None, all fits use the strengths of the path on all data.
        score: objective whose loss is computed on the rows left out; None for
            `objective`.
        num_folds: number of parts into which the data are divided, at least 2.
        clusters: labels of correlated rows, one for each row; rows with the same label
            are in the same fold, with all their copies. `np.arange(n) // 500` are
            blocks of 500 successive rows. None if rows are independent.

    >>> from probjax import L2, ScoreMatching
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> rows = 5 + jax.random.normal(jax.random.key(0), (8, 1))
    >>> args = jax.random.key(1), ScoreMatching(energy), jnp.zeros(1), rows
    >>> found = cross_validate(*args, penalty=L2(1.0), strengths=[1, 0.01], num_folds=2)
    >>> found.best, bool(found.mean[0] > found.mean[1])
    (1, True)
    """
    check_count("num_folds", num_folds, least=2)
    for name, used in {"objective": objective, "score": score or objective}.items():
        if not used.has_value:
            raise ValueError(
                f"{name} must have a loss value by which strengths are compared, got "
                f"{type(used).__name__}, which defines only a gradient; try "
                "PseudoLikelihood"
            )
    data = as_data(data)
    refuse_mask(
        data,
        "a loss on held-out rows requires complete rows, because missing entries would "
        "be imputed by the model that is compared",
    )
    if not is_concrete((params, data)):
        raise ValueError(
            "cross_validate must be called outside jit and vmap, because it runs on "
            "the host, got traced params or data"
        )
    fold_key, fit_key, score_key = jax.random.split(key, 3)
    if clusters is None:
        folds = _fold_weights(fold_key, data, num_folds)
    else:
        folds = _cluster_weights(fold_key, data, num_folds, clusters)

    def fit_weighted(weights, strengths):
        return fit_path(
            fit_key,
            objective,
            params,
            data._replace(weights=weights),
            penalty=penalty,
            chart=chart,
            strengths=strengths,
            num_strengths=num_strengths,
            smallest=smallest,
            steps_per_round=steps_per_round,
            stop=stop,
        )

    def score_fold(path, weights):
        rows = data._replace(weights=jnp.asarray(weights))
        used = objective if score is None else score
        members = map(path.at, range(len(path.strengths)))
        return jnp.stack([loss(score_key, used, member, rows) for member in members])

    # Weights are passed even if all are 1, so that all fits run the same program.
    total = folds.sum(0)
    path = fit_weighted(jnp.asarray(total), strengths)
    scores = [
        score_fold(fit_weighted(jnp.asarray(total - fold), path.strengths), fold)
        for fold in folds
    ]
    return Validation(jnp.stack(scores), path)


def _fold_weights(key, data, num_folds):
    """Return the weight of each row in each fold; they add up to the row's weight."""
    count = num_rows(data)
    weights = np.ones(count) if data.weights is None else np.asarray(data.weights)
    counts = np.round(weights).astype(int)
    copies = counts if np.array_equal(counts, weights) else (weights > 0).astype(int)
    if copies.sum() < num_folds:
        raise ValueError(
            f"num_folds must not exceed the {copies.sum()} rows, got {num_folds}; try "
            "num_folds=2"
        )
    rows = np.repeat(np.arange(count), copies)
    fold = np.asarray(jax.random.permutation(key, len(rows))) % num_folds
    num_copies = np.zeros((num_folds, count))
    np.add.at(num_copies, (fold, rows), 1)
    return num_copies * np.where(copies > 0, weights / np.maximum(copies, 1), 0)[None]


def _cluster_weights(key, data, num_folds, clusters):
    """Return the weight of each row in each fold, if clusters stay whole.

    Clusters in random order, the heaviest first, go to the fold that is lightest.
    """
    count = num_rows(data)
    weights = np.ones(count) if data.weights is None else np.asarray(data.weights)
    index = np.asarray(row_clusters(clusters, count).labels)
    total = np.bincount(index, weights)
    if np.count_nonzero(total) < num_folds:
        raise ValueError(
            f"num_folds must not exceed the {np.count_nonzero(total)} clusters, got "
            f"{num_folds}; try num_folds=2"
        )
    order = np.asarray(jax.random.permutation(key, len(total)))
    order = order[np.argsort(-total[order], kind="stable")]
    fold, loads = np.zeros(len(total), int), np.zeros(num_folds)
    for cluster in order:
        fold[cluster] = np.argmin(loads)
        loads[fold[cluster]] += total[cluster]
    return np.where(np.arange(num_folds)[:, None] == fold[index], weights, 0.0)
