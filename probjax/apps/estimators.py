"""Scikit-learn estimators of models of bits and letters, for pipelines and searches.

    from probjax import estimators
    estimators.Ising().fit(X).score(held_out)

Scores are log-probabilities in nats, log p(x) = -E(x) - log Z, and never
pseudolikelihoods. `fit` computes log Z once. If that takes at most 2^20 terms (20 bits;
for an RBM, 20 units in one of its layers), log Z is summed exactly and `log_z_stderr_`
is 0. Otherwise it is estimated by annealing, which is biased low, so that scores are
too high by about `log_z_stderr_`. A warning is issued if the estimate is unreliable.

After the fit, `check_fit` compares the model with the data by Markov chains that start
at the data, and a warning is issued if the model differs. That takes seconds, and much
longer for large models. In cross-validation, set `check=False`:

    GridSearchCV(estimators.Ising(check=False), {"strength": [1e-4, 1e-3, 1e-2]})

`objective` and `penalty` are constructors of the library, such as `MPF` and `L2`; the
penalty is `penalty(strength)`. Estimators inherit from each other, unlike other classes
of the library, because scikit-learn requires it. Only this module imports scikit-learn,
and `import probjax` does not import this module.

Reference: Pedregosa et al., "Scikit-learn: machine learning in Python", JMLR 12 (2011).
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import jax
import numpy as np

from probjax.apps import fitted_models
from probjax.apps.families import FAMILIES, Family
from probjax.interfaces import Objective, Penalty
from probjax.models import hopfield, rbm
from probjax.objectives.flow import MPF
from probjax.objectives.penalty import L2
from probjax.objectives.pseudolikelihood import PseudoLikelihood

try:
    from sklearn.base import (
        BaseEstimator,
        ClassNamePrefixFeaturesOutMixin,
        DensityMixin,
        OneToOneFeatureMixin,
        TransformerMixin,
    )
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        check_non_negative,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "estimators require scikit-learn 1.6 or newer: pip install scikit-learn"
    ) from error


@dataclass(kw_only=True, eq=False, repr=False)
class _Density(ABC, DensityMixin, BaseEstimator):
    """Density estimator for one family of `FAMILIES`.

    Scikit-learn reads parameters from the signature of `__init__`. Every estimator is a
    dataclass, for which Python generates it from the fields of the class and its bases.
    """

    _family_name: ClassVar[str]

    objective: Callable[..., Objective] = MPF
    penalty: Callable[[float], Penalty] = L2
    strength: float = 1e-4
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
class _Bits(_Density):
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


@dataclass(kw_only=True, eq=False, repr=False)
class Ising(_Bits):
    """Ising model, or fully visible Boltzmann machine: bits with pairwise couplings.

    Args:
        objective: the loss: `MPF`, `PseudoLikelihood`, `MaximumLikelihood` (up to 20
            bits), or any function of an energy that returns an objective.
        penalty: the class `L2`, or the class `L1`, which sets some couplings exactly to
            zero. Both penalise couplings only, and keep the biases of constant units
            finite by a faint prior, see `probjax.objectives.penalty`.
        strength: the strength of the penalty; 0 for no penalty.
        binarize: values above it are set to 1 and all others to 0, as in scikit-learn's
            `BernoulliNB`, so that bits, booleans and spins of -1 and 1 are accepted;
            issues a warning if X has more than two distinct values. None to raise an
            error for values other than 0 and 1.
        max_iter: the largest number of descent steps; a warning is issued if the fit
            has not converged by then.
        annealing_steps: the number of intermediate distributions in the estimate of log
            Z if it cannot be summed; 0 to skip the estimate, if no scores are needed.
        check: whether to compare the fitted model with the data by `check_fit`, and to
            issue a warning if it differs. Set it to False in cross-validation, such as
            `GridSearchCV`, which fits many models on purpose.
        random_state: an integer for reproducible results.

    Attributes:
        params_: the parameters, for functions of `probjax.ising` such as
            `ising.coupling_matrix(params_)`.
        log_z_: the log partition function.
        log_z_stderr_: the standard error of `log_z_`.
        check_: the `FitCheck` of the model; None if `check` is False.
        n_iter_: the number of descent steps.
        model_: the model as `storage.save` writes it for the command line.

    >>> X = np.array([[0, 0], [1, 1], [1, 1], [0, 1]])
    >>> model = Ising(strength=1e-3).fit(X)
    >>> states = [[0, 0], [0, 1], [1, 0], [1, 1]]
    >>> round(float(np.exp(model.score_samples(states)).sum()), 3)
    1.0
    """

    _family_name = "ising"


@dataclass(kw_only=True, eq=False, repr=False)
class Hopfield(OneToOneFeatureMixin, TransformerMixin, _Bits):
    """Hopfield network that stores rows as memories; `transform` recalls them.

    With a small penalty, minimum probability flow gives the memories wide basins of
    attraction; see `probjax.hopfield`. Arguments and attributes are those of `Ising`,
    which has the same energy in other parameters; `params_` is for functions of
    `probjax.hopfield`.

    >>> X = np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
    >>> Hopfield().fit(X).transform([[1, 1, 0, 1], [0, 0, 1, 0]]).tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    """

    _family_name = "hopfield"

    strength: float = 2e-5

    def transform(self, X: Any) -> np.ndarray:
        """Return the fixed point that the dynamics reach from each row, as 0 and 1."""
        check_is_fitted(self)
        x = self._states(X, reset=False)
        return fitted_models.apply_in_blocks(partial(_recall, self.params_), x)


@dataclass(kw_only=True, eq=False, repr=False)
class RBM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Bits):
    """Restricted Boltzmann machine; `transform` returns the means of its hidden units.

    Unlike scikit-learn's `BernoulliRBM`, `score` returns the true log-likelihood.

    Args:
        n_components: the number of hidden units, also accepted by position.
        objective: the loss, as for `Ising`. The default `PseudoLikelihood` is bounded
            below. `MPF` is not if hidden units can distinguish all rows from their
            neighbours, so that a fit to few rows may not converge.

    The other arguments are those of `Ising`; `params_` is for functions of
    `probjax.rbm`.

    >>> from probjax import MaximumLikelihood
    >>> X = np.array([[0, 0], [1, 1], [1, 1], [0, 1]])
    >>> model = RBM(3, objective=MaximumLikelihood, strength=1e-2, random_state=0)
    >>> model.fit_transform(X).shape
    (4, 3)
    """

    _family_name = "rbm"

    n_components: int = field(default=16, kw_only=False)
    objective: Callable[..., Objective] = PseudoLikelihood

    def _num_hidden(self) -> int:
        return self.n_components

    @property
    def _n_features_out(self):
        return self.n_components

    def transform(self, X: Any) -> np.ndarray:
        """Return the probability that each hidden unit is on, given each row."""
        check_is_fitted(self)
        x = self._states(X, reset=False)
        return fitted_models.apply_in_blocks(partial(_hidden_means, self.params_), x)


@dataclass(kw_only=True, eq=False, repr=False)
class Potts(_Density):
    """Potts model: sites of several letters with pairwise couplings, as for proteins.

    Rows are letters 0 to q - 1. Other numbers raise an error, because no threshold
    turns them into letters.

    Args:
        num_states: the number of letters of a site; None for 1 + the largest letter in
            the data, at least 2.
        objective: the loss: `PseudoLikelihood`, `families.SiteFlow` for minimum
            probability flow, `MaximumLikelihood`, or any function of an energy and
            `num_states=` that returns an objective.

    The other arguments are those of `Ising` except `binarize`; `params_` is for
    functions of `probjax.potts` such as `potts.contact_scores(params_)`.

    >>> X = np.array([[0, 0], [1, 1], [2, 2], [2, 2], [0, 1]])
    >>> model = Potts().fit(X)
    >>> bool(model.score([[2, 2]]) > model.score([[2, 0]]))
    True
    """

    _family_name = "potts"

    num_states: int | None = None
    objective: Callable[..., Objective] = PseudoLikelihood
    strength: float = 1e-2

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.positive_only = True
        return tags

    def _states(self, X: Any, *, reset: bool) -> np.ndarray:
        x = np.asarray(validate_data(self, X, reset=reset))
        check_non_negative(x, type(self).__name__)
        if not (x == np.round(x)).all():
            raise ValueError("X must be letters for Potts, whole numbers from 0")
        largest = int(x.max())
        if reset:
            found = max(largest + 1, 2)
            self.num_states_ = found if self.num_states is None else self.num_states
        if largest >= self.num_states_:
            raise ValueError(
                f"X must be letters from 0 to {self.num_states_ - 1} for Potts of "
                f"{self.num_states_} letters, got {largest}"
            )
        return x

    def _num_states(self) -> int:
        return self.num_states_

    def _objective(self) -> Objective:
        return self.objective(self._family.energy, num_states=self.num_states_)


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


@jax.jit
def _recall(params, x):
    return hopfield.recall(params, x).x


@jax.jit
def _hidden_means(params, x):
    return jax.vmap(rbm.hidden_means, (None, 0))(params, x)
