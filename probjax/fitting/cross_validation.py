"""How strong a penalty should be, by how well rows left out are told.

    score(s) = mean over folds of loss(theta(s) fitted to the other folds) on the fold

A fold's rows are left out by a weight of zero, so all fits are runs of one program,
each from the fit of the strength before. The score is a loss without the penalty: that
of the objective itself, or of another one, as the exact likelihood where there is one.

Reference: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning,
section 7.10.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count, is_concrete
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.fitting.fit import loss
from probjax.fitting.path import RegularisationPath, fit_path
from probjax.fitting.stopping import StoppingRule
from probjax.interfaces import Chart, Objective, Penalty
from probjax.types import Array, ArrayLike, Data, Float, Params, PRNGKeyArray, PyTree


class Validation(NamedTuple):
    """The outcome of `cross_validate`.

    >>> strengths, ones = jnp.array([1.0, 0.1, 0.01]), jnp.ones(3)
    >>> path = RegularisationPath(strengths, jnp.zeros(3), ones, ones, ones)
    >>> found = Validation(jnp.array([[3.0, 1.0, 1.5], [5.0, 1.0, 1.5]]), path)
    >>> found.mean.tolist(), found.best
    ([4.0, 1.0, 1.5], 1)
    """

    scores: Float[Array, "fold n"]
    """The loss on each fold of the fits to the others, without the penalty."""
    path: RegularisationPath
    """The fits to all data, `path.at(best)` above all."""

    @property
    def strengths(self) -> Float[Array, " n"]:
        """From the strongest penalty to the weakest."""
        return self.path.strengths

    @property
    def mean(self) -> Float[Array, " n"]:
        """The score of each strength, over folds."""
        return self.scores.mean(0)

    @property
    def best(self) -> int:
        """Which strength has the lowest score."""
        return int(jnp.argmin(self.mean))

    @property
    def simplest(self) -> int:
        """The strongest penalty that is no worse than the best beyond its noise.

        The noise is one standard error, over folds, of the difference between the two.
        """
        worse = self.scores - self.scores[:, self.best][:, None]
        noise = worse.std(0, ddof=1) / np.sqrt(len(worse))
        return int(jnp.argmax(worse.mean(0) <= noise))


def cross_validate(
    key: PRNGKeyArray,
    objective: Objective,
    params: Params,
    data: PyTree | Data,
    *,
    penalty: Penalty,
    score: Objective | None = None,
    num_folds: int = 5,
    chart: Chart | None = None,
    strengths: Float[ArrayLike, " n"] | None = None,
    num_strengths: int = 30,
    smallest: float = 1e-3,
    steps_per_round: int = 2000,
    stop: StoppingRule | None = None,
) -> Validation:
    """Fit `objective` at every strength to all data, and to all but each fold.

    Weights that are whole numbers are counts, and the copies of a row are dealt out to
    the folds one by one, as if the rows were repeated; rows with other weights are
    dealt out whole.

    Args:
        score: the loss of rows left out; `objective` if None.
        num_folds: how many parts the data are dealt into.
        penalty: as for `fit_path`, and so are all others. Strengths that are not given
            are those of the path on all data.

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
    for loss_of in (objective, score or objective):
        if not loss_of.has_value:
            raise ValueError(
                f"the value of {type(loss_of).__name__} says nothing to choose by: "
                "give another objective, as PseudoLikelihood"
            )
    data = as_data(data)
    refuse_mask(data, "strengths are compared on complete rows")
    if not is_concrete((params, data)):
        raise ValueError("cross_validate works on the host: not inside jit or vmap")
    fold_key, fit_key, score_key = jax.random.split(key, 3)
    held = _deal(fold_key, data, num_folds)

    def learn(weights, strengths):
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

    def judge(path, weights):
        rows = data._replace(weights=jnp.asarray(weights))
        judged = objective if score is None else score
        members = map(path.at, range(len(path.strengths)))
        return jnp.stack([loss(score_key, judged, member, rows) for member in members])

    # With weights as the folds have them, to be a run of the same program.
    total = held.sum(0)
    path = learn(jnp.asarray(total), strengths)
    scores = [
        judge(learn(jnp.asarray(total - fold), path.strengths), fold) for fold in held
    ]
    return Validation(jnp.stack(scores), path)


def _deal(key, data, num_folds):
    """The weight of every row in every fold, which together are the data's."""
    count = num_rows(data)
    weights = np.ones(count) if data.weights is None else np.asarray(data.weights)
    counts = np.round(weights).astype(int)
    copies = counts if np.array_equal(counts, weights) else (weights > 0).astype(int)
    if copies.sum() < num_folds:
        raise ValueError(
            f"num_folds must not exceed the {copies.sum()} rows, got {num_folds}"
        )
    rows = np.repeat(np.arange(count), copies)
    fold = np.asarray(jax.random.permutation(key, len(rows))) % num_folds
    share = np.zeros((num_folds, count))
    np.add.at(share, (fold, rows), 1)
    return share * np.where(copies > 0, weights / np.maximum(copies, 1), 0)[None]
