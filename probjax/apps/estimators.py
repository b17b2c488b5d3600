"""Scikit-learn estimators: densities of bits and letters, for pipelines and searches.

    from probjax import estimators
    estimators.Ising().fit(X).score(held_out)

Scores are true log-probabilities in nats, log p(x) = -E(x) - log Z, and never
pseudolikelihoods. log Z is found once, by `fit`: summed where that takes at most 2^20
states (20 bits; of an RBM, 20 units in one of its layers), and then `log_z_stderr_` is
0; else estimated by annealing, which is biased low, so that scores come out high by
about as much as `log_z_stderr_` tells. A warning says when that cannot be trusted.

`objective` and `penalty` are constructors of the library, as `MPF` and `L2`, and the
penalty is `penalty(strength)`. Only here do classes inherit, as scikit-learn wants it;
this module alone imports it, and `import probjax` does not import this module.

Reference: Pedregosa et al., "Scikit-learn: machine learning in Python", JMLR 12 (2011).
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import jax
import numpy as np

from probjax.apps import families
from probjax.interfaces import Objective, Penalty
from probjax.models import hopfield, ising, potts, rbm
from probjax.objectives.flow import MPF
from probjax.objectives.penalty import L2
from probjax.objectives.pseudolikelihood import PseudoLikelihood
from probjax.types import Data, Params, PRNGKeyArray

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
        "estimators need scikit-learn 1.6 or newer: pip install scikit-learn"
    ) from error


class _Density(DensityMixin, BaseEstimator):
    """What the models share: fit, normalise, score, draw."""

    _family: str
    objective: Callable[..., Objective]
    penalty: Callable[[float], Penalty]
    strength: float
    max_iter: int
    annealing_steps: int
    random_state: Any

    def _states(self, X: Any, *, reset: bool) -> np.ndarray:
        """`X` as states of the model, or refused; `reset` when it is learned from."""
        raise NotImplementedError

    def _objective(self) -> Objective:
        raise NotImplementedError

    def _start(self, key: PRNGKeyArray, data: Data) -> Params:
        raise NotImplementedError

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the model, and find its partition function.

        Args:
            X: rows of states; see the class.
            y: ignored.
            sample_weight: how much each row counts; 2 is the row given twice.
        """
        _refuse_names("penalty", "L1 or L2", self.penalty)
        _refuse_names("objective", "MPF or PseudoLikelihood", self.objective)
        x = self._states(X, reset=True)
        weights = _check_sample_weight(sample_weight, x, ensure_non_negative=True)
        data = families.counted(x, weights)
        start_key, fit_key, anneal_key = jax.random.split(_key(self.random_state), 3)
        self.model_, found = families.learn(
            fit_key,
            self._family,
            self._objective(),
            self._start(start_key, data),
            data,
            penalty=self.penalty(self.strength) if self.strength else None,
            max_steps=self.max_iter,
        )
        self.params_ = self.model_.params
        # Scikit-learn counts the look at the start.
        self.n_iter_ = max(len(found.losses), 1)
        self._normalise(anneal_key)
        return self

    def _normalise(self, key):
        if not (self.annealing_steps or families.can_sum(self.model_)):
            self.log_z_ = self.log_z_stderr_ = np.nan
            return
        found = families.from_below(key, self.model_, num_steps=self.annealing_steps)
        self.log_z_, self.log_z_stderr_ = found.log_z, found.stderr
        if not found.trusted:
            warnings.warn(
                f"{found.said}; raise annealing_steps={self.annealing_steps}",
                stacklevel=3,
            )

    def score_samples(self, X: Any) -> np.ndarray:
        """The log p(x) of every row, in nats, with the log Z of `fit`."""
        check_is_fitted(self)
        x = self._states(X, reset=False)
        if np.isnan(self.log_z_):
            raise ValueError(
                "log Z was not estimated, as annealing_steps is 0: fit with more"
            )
        return -families.energies(self.model_, x) - self.log_z_

    def score(self, X: Any, y: Any = None) -> float:  # pyright: ignore
        """The mean of log p(x) over rows, in nats."""
        return float(np.mean(self.score_samples(X)))

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Rows drawn from the model.

        They are exact and independent if its states are few (2^20), else of up to 200
        Markov chains, of which every tenth state is kept after a thousand.

        Args:
            random_state: None for that of the estimator: with an integer there, the
                same rows every time.
        """
        check_is_fitted(self)
        given = self.random_state if random_state is None else random_state
        # Apart from the keys of `fit`, which are split from the same.
        key = jax.random.fold_in(_key(given), 1)
        return families.draw(key, self.model_, n_samples).astype(np.float64)


class _Bits(_Density):
    """Models of bits."""

    binarize: float | None

    def _states(self, X: Any, *, reset: bool) -> np.ndarray:
        x = np.asarray(validate_data(self, X, reset=reset))
        if self.binarize is not None:
            if reset and _is_grey(x):
                warnings.warn(
                    f"X has more than two values: those above binarize={self.binarize} "
                    "count as 1, all others as 0",
                    stacklevel=3,
                )
            return x > self.binarize
        if not np.isin(x, (0, 1)).all():
            raise ValueError(
                f"{type(self).__name__} with binarize=None needs data of 0 and 1: give "
                "binarize=0.0 to take what is above 0 as 1, as for spins of -1 and 1"
            )
        return x

    def _objective(self) -> Objective:
        return self.objective(families.FAMILIES[self._family].energy)


class Ising(_Bits):
    """The Ising model, or fully visible Boltzmann machine: bits coupled in pairs.

    Args:
        objective: what is minimised: `MPF`, `PseudoLikelihood`, `MaximumLikelihood`
            (up to 20 bits), or any function of an energy that makes an objective.
        penalty: `L2` on all parameters, so that units that never change have finite
            ones; or `L1` for couplings that are exactly zero, which leaves biases but
            for a faint `L2`. The class itself, and no name of it.
        strength: of the penalty; 0 for none.
        binarize: what is above it is 1 and all else 0, as in scikit-learn's
            `BernoulliNB`; bits, booleans and spins of -1 and 1 are then taken alike.
            None to refuse all but 0 and 1. Of more than two values a warning tells.
        max_iter: steps of descent at most; a warning says if they were too few.
        annealing_steps: distributions on the way to log Z where it cannot be summed; 0
            not to estimate it, as where scores are not wanted.
        random_state: an integer for results that can be repeated.

    Attributes:
        params_: what `probjax.ising` takes, as `ising.coupling_matrix(params_)`.
        log_z_: the partition function.
        log_z_stderr_: its standard error.
        n_iter_: steps of descent.
        model_: what `storage.save` writes for the command line to read.

    >>> X = np.array([[0, 0], [1, 1], [1, 1], [0, 1]])
    >>> model = Ising(strength=1e-3).fit(X)
    >>> states = [[0, 0], [0, 1], [1, 0], [1, 1]]
    >>> round(float(np.exp(model.score_samples(states)).sum()), 3)
    1.0
    """

    _family = "ising"

    def __init__(
        self,
        *,
        objective: Callable[..., Objective] = MPF,
        penalty: Callable[[float], Penalty] = L2,
        strength: float = 1e-4,
        binarize: float | None = 0.0,
        max_iter: int = 2000,
        annealing_steps: int = 1000,
        random_state: Any = None,
    ):
        self.objective = objective
        self.penalty = penalty
        self.strength = strength
        self.binarize = binarize
        self.max_iter = max_iter
        self.annealing_steps = annealing_steps
        self.random_state = random_state

    def _start(self, key: PRNGKeyArray, data: Data) -> ising.Params:
        return ising.init(key, data.x.shape[1], scale=0.0)


class Hopfield(OneToOneFeatureMixin, TransformerMixin, _Bits):
    """A Hopfield network that remembers rows: `transform` recalls them.

    With a small penalty the flow has its minimum where basins are wide: see
    `probjax.hopfield`. Its arguments and attributes are those of `Ising`, with which it
    has the energy in common; `params_` are what `probjax.hopfield` takes.

    >>> X = np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
    >>> Hopfield().fit(X).transform([[1, 1, 0, 1], [0, 0, 1, 0]]).tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    """

    _family = "hopfield"

    def __init__(
        self,
        *,
        objective: Callable[..., Objective] = MPF,
        penalty: Callable[[float], Penalty] = L2,
        strength: float = 2e-5,
        binarize: float | None = 0.0,
        max_iter: int = 2000,
        annealing_steps: int = 1000,
        random_state: Any = None,
    ):
        self.objective = objective
        self.penalty = penalty
        self.strength = strength
        self.binarize = binarize
        self.max_iter = max_iter
        self.annealing_steps = annealing_steps
        self.random_state = random_state

    def _start(self, key: PRNGKeyArray, data: Data) -> hopfield.Params:
        return hopfield.init(key, data.x.shape[1])

    def transform(self, X: Any) -> np.ndarray:
        """The memories, as 0 and 1, that the dynamics come to from each row."""
        check_is_fitted(self)
        x = self._states(X, reset=False)
        return families.in_blocks(partial(_recalled, self.params_), x)


class RBM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Bits):
    """A restricted Boltzmann machine: `transform` gives the means of its hidden units.

    Other than scikit-learn's `BernoulliRBM` it is scored by its true log-probability.

    Args:
        n_components: hidden units.
        objective: as for `Ising`; by default `PseudoLikelihood`, which has a lower
            bound where hidden units tell all rows from their neighbours. That of `MPF`
            has none, and a fit of few rows may end short of its minimum.

    All else is as for `Ising`; `params_` are what `probjax.rbm` takes.

    >>> from probjax import MaximumLikelihood
    >>> X = np.array([[0, 0], [1, 1], [1, 1], [0, 1]])
    >>> model = RBM(3, objective=MaximumLikelihood, strength=1e-2, random_state=0)
    >>> model.fit_transform(X).shape
    (4, 3)
    """

    _family = "rbm"

    def __init__(
        self,
        n_components: int = 16,
        *,
        objective: Callable[..., Objective] = PseudoLikelihood,
        penalty: Callable[[float], Penalty] = L2,
        strength: float = 1e-4,
        binarize: float | None = 0.0,
        max_iter: int = 2000,
        annealing_steps: int = 1000,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.objective = objective
        self.penalty = penalty
        self.strength = strength
        self.binarize = binarize
        self.max_iter = max_iter
        self.annealing_steps = annealing_steps
        self.random_state = random_state

    def _start(self, key: PRNGKeyArray, data: Data) -> rbm.Params:
        size = data.x.shape[1]
        return rbm.init(key, size, self.n_components, scale=0.1, data=data)

    @property
    def _n_features_out(self):
        return self.n_components

    def transform(self, X: Any) -> np.ndarray:
        """The probability that each hidden unit is on, given a row."""
        check_is_fitted(self)
        x = self._states(X, reset=False)
        return families.in_blocks(partial(_hidden_means, self.params_), x)


class Potts(_Density):
    """The Potts model: sites of several letters, coupled in pairs, as of proteins.

    Rows are letters 0 to q - 1. Numbers that are not whole are refused: there is no
    threshold that would make letters of them.

    Args:
        num_states: letters of a site; None for as many as the data show.
        objective: `PseudoLikelihood`, `families.SiteFlow` for minimum probability flow,
            `MaximumLikelihood`, or any function of an energy and `num_states=`.

    All else is as for `Ising`; `params_` are what `probjax.potts` takes, as
    `potts.contact_scores(params_)`.

    >>> X = np.array([[0, 0], [1, 1], [2, 2], [2, 2], [0, 1]])
    >>> model = Potts().fit(X)
    >>> bool(model.score([[2, 2]]) > model.score([[2, 0]]))
    True
    """

    _family = "potts"

    def __init__(
        self,
        *,
        num_states: int | None = None,
        objective: Callable[..., Objective] = PseudoLikelihood,
        penalty: Callable[[float], Penalty] = L2,
        strength: float = 1e-2,
        max_iter: int = 2000,
        annealing_steps: int = 1000,
        random_state: Any = None,
    ):
        self.num_states = num_states
        self.objective = objective
        self.penalty = penalty
        self.strength = strength
        self.max_iter = max_iter
        self.annealing_steps = annealing_steps
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.positive_only = True
        return tags

    def _states(self, X: Any, *, reset: bool) -> np.ndarray:
        x = np.asarray(validate_data(self, X, reset=reset))
        check_non_negative(x, type(self).__name__)
        if not (x == np.round(x)).all():
            raise ValueError("Potts needs letters, whole numbers of 0 and more")
        most = int(x.max()) + 1
        if reset:
            shown = max(most, 2)
            self.num_states_ = shown if self.num_states is None else self.num_states
        if most > self.num_states_:
            raise ValueError(
                f"Potts of {self.num_states_} states needs the letters 0 to "
                f"{self.num_states_ - 1}, got {most - 1}"
            )
        return x

    def _objective(self) -> Objective:
        return self.objective(potts.energy, num_states=self.num_states_)

    def _start(self, key: PRNGKeyArray, data: Data) -> potts.Params:
        return potts.init(key, data.x.shape[1], self.num_states_, scale=0.0)


def _refuse_names(parameter, examples, given):
    """A string would fail only when called, as trouble of another kind."""
    if not callable(given):
        raise ValueError(f"{parameter} must be {examples}, the class, got {given!r}")


def _is_grey(x):
    return bool(((x != x.min()) & (x != x.max())).any())


def _key(random_state):
    return jax.random.key(check_random_state(random_state).randint(2**31 - 1))


@jax.jit
def _recalled(params, x):
    return hopfield.recall(params, x).x


@jax.jit
def _hidden_means(params, x):
    return jax.vmap(rbm.hidden_means, (None, 0))(params, x)
