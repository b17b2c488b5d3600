"""Base classes of the scikit-learn estimators of `probjax.estimators`.

`Density` fits, checks, normalises, scores and samples a model of any family; `Bits`
converts rows to bits. They inherit from each other, unlike other classes of the
library, because scikit-learn requires it.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import numpy as np

from probjax.apps import fitted_models
from probjax.apps.families import FAMILIES, Family
from probjax.interfaces import Objective, Penalty
from probjax.objectives.flow import MPF
from probjax.objectives.penalty import L2

try:
    from sklearn.base import BaseEstimator, DensityMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "estimators require scikit-learn 1.6 or newer: pip install scikit-learn"
    ) from error


@dataclass(kw_only=True, eq=False, repr=False)
class Density(ABC, DensityMixin, BaseEstimator):
    """Density estimator for one family of `FAMILIES`.

    Scikit-learn reads parameters from the signature of `__init__`. Every estimator is a
    dataclass, for which Python generates it from the fields of the class and its bases.
    """

    _family_name: ClassVar[str]

    objective: Callable[..., Objective] = MPF
    penalty: Callable[[float], Penalty] = L2
    strength: float = FAMILIES["ising"].strength
    max_iter: int = 2000
    annealing_steps: int = 1000
    check: bool = True
    random_state: Any = None

    @abstractmethod
    def _states(self, X: Any, *, reset: bool) -> np.ndarray:
        """Return `X` as states of the model, or raise; `reset` is True in `fit`."""

    @abstractmethod
    def _num_states(self) -> int:
        """Return the number of letters of a site, in `fit` after `_states`."""

    @abstractmethod
    def _objective(self) -> Objective:
        """Return the objective of the model's energy."""

    def _num_hidden(self) -> int:
        """Return the number of hidden units."""
        return 0

    @property
    def _family(self) -> Family:
        return FAMILIES[self._family_name]

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model and compute its partition function.

        Args:
            X: rows of states; the docstring of the class describes them.
            y: ignored.
            sample_weight: the weight of each row; a weight of 2 is the same as giving
                the row twice.
        """
        _check_callable("penalty", "L1 or L2", self.penalty)
        _check_callable("objective", "MPF or PseudoLikelihood", self.objective)
        x = self._states(X, reset=True)
        weights = _check_sample_weight(sample_weight, x, ensure_non_negative=True)
        data = fitted_models.distinct_rows(x, weights)
        start_key, fit_key, anneal_key, check_key = jax.random.split(
            _key(self.random_state), 4
        )
        self.model_, found = fitted_models.fit_model(
            fit_key,
            self._family_name,
            self._objective(),
            self._family.init(start_key, data, self._num_states(), self._num_hidden()),
            data,
            penalty=self.penalty(self.strength) if self.strength else None,
            max_steps=self.max_iter,
        )
        self.params_ = self.model_.params
        # Scikit-learn requires at least 1, even if the start is already the minimum.
        self.n_iter_ = max(len(found.losses), 1)
        self._check_model(check_key, data)
        self._normalise(anneal_key)
        return self

    def _check_model(self, key, data):
        self.check_ = None
        if not self.check:
            return
        self.check_ = fitted_models.check_model(key, self.model_, data)
        if not self.check_.passed:
            warnings.warn(
                f"{self.check_.describe()}; check=False fits without this check",
                stacklevel=3,
            )

    def _normalise(self, key):
        if not (self.annealing_steps or fitted_models.can_sum(self.model_)):
            self.log_z_ = self.log_z_stderr_ = np.nan
            return
        found = fitted_models.estimate_log_z(
            key, self.model_, num_steps=self.annealing_steps
        )
        self.log_z_, self.log_z_stderr_ = found.log_z, found.stderr
        if not found.trusted:
            warnings.warn(
                f"log Z is unreliable ({found.said}), and so are all scores; raise "
                f"annealing_steps={self.annealing_steps}",
                stacklevel=3,
            )

    def score_samples(self, X: Any) -> np.ndarray:
        """Return log p(x) of each row in nats, with the log Z of `fit`."""
        check_is_fitted(self)
        x = self._states(X, reset=False)
        if np.isnan(self.log_z_):
            raise ValueError(
                "scores require log Z, which was not estimated because "
                "annealing_steps is 0; fit with annealing_steps=1000"
            )
        return -fitted_models.energies(self.model_, x) - self.log_z_

    def score(self, X: Any, y: Any = None) -> float:  # pyright: ignore
        """Return the mean of log p(x) over rows in nats; `y` is ignored."""
        return float(np.mean(self.score_samples(X)))

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draw rows from the model, `(row, site)`.

        If there are at most 2^20 states, rows are exact and independent. Otherwise they
        are states of up to 200 Markov chains, of which every tenth state is kept after
        1,000 warmup steps.

        Args:
            n_samples: the number of rows.
            random_state: None to use that of the estimator; if it is an integer, every
                call returns the same rows.
        """
        check_is_fitted(self)
        state = self.random_state if random_state is None else random_state
        # `fold_in` makes the key differ from the keys of `fit`.
        key = jax.random.fold_in(_key(state), 1)
        return fitted_models.draw(key, self.model_, n_samples).astype(np.float64)


@dataclass(kw_only=True, eq=False, repr=False)
class Bits(Density):
    """Density estimator for bits."""

    binarize: float | None = 0.0

    def _states(self, X: Any, *, reset: bool) -> np.ndarray:
        x = np.asarray(validate_data(self, X, reset=reset))
        if self.binarize is not None:
            if reset and _has_more_than_two_values(x):
                warnings.warn(
                    "X has more than two values; values above "
                    f"binarize={self.binarize} were set to 1 and all others to 0; pass "
                    "binary data, or the threshold that you want",
                    stacklevel=3,
                )
            return x > self.binarize
        if not np.isin(x, (0, 1)).all():
            raise ValueError(
                f"X must be 0 or 1 for {type(self).__name__} with binarize=None; try "
                "binarize=0.0 to set values above 0 to 1, such as for spins of -1 and 1"
            )
        return x

    def _num_states(self) -> int:
        return 2

    def _objective(self) -> Objective:
        return self.objective(self._family.energy)


def _check_callable(parameter, examples, given):
    """Raise for a string, which would fail later with an unrelated error."""
    if not callable(given):
        raise ValueError(
            f"{parameter} must be a constructor such as {examples}, got {given!r}"
        )


def _has_more_than_two_values(x):
    return bool(((x != x.min()) & (x != x.max())).any())


def _key(random_state):
    return jax.random.key(check_random_state(random_state).randint(2**31 - 1))
