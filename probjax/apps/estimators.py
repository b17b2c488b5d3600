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
penalty is `penalty(strength)`. `import probjax` does not import this module, which
imports scikit-learn.

Reference: Pedregosa et al., "Scikit-learn: machine learning in Python", JMLR 12 (2011).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

# First, because its error says what to install.
from probjax.apps.density import Bits, Density

# isort: split
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils.validation import (
    check_is_fitted,
    check_non_negative,
    validate_data,
)

from probjax.apps import fitted_models
from probjax.apps.families import FAMILIES
from probjax.interfaces import Objective
from probjax.models import hopfield, rbm
from probjax.objectives.pseudolikelihood import PseudoLikelihood


@dataclass(kw_only=True, eq=False, repr=False)
class Ising(Bits):
    """Ising model, or fully visible Boltzmann machine: bits with pairwise couplings.

    Args:
        objective: the loss: `MPF`, `PseudoLikelihood`, `MaximumLikelihood` (up to 20
            bits), or any function of an energy that returns an objective.
        penalty: the class `L2`, or the class `L1`, which sets some couplings exactly to
            zero. Both penalise couplings only, and keep the biases of constant units
            finite by a faint prior, see `probjax.objectives.penalty`.
        strength: the strength of the penalty; 0 for no penalty. Losses are means over
            rows, so that the lambda of programs that penalise a sum over rows is
            divided by the number of rows.
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
class Hopfield(OneToOneFeatureMixin, TransformerMixin, Bits):
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

    strength: float = FAMILIES["hopfield"].strength

    def transform(self, X: Any) -> np.ndarray:
        """Return the fixed point that the dynamics reach from each row, as 0 and 1."""
        check_is_fitted(self)
        x = self._states(X, reset=False)
        return fitted_models.apply_in_blocks(partial(_recall, self.params_), x)


@dataclass(kw_only=True, eq=False, repr=False)
class RBM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Bits):
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
class Potts(Density):
    """Potts model: sites of several letters with pairwise couplings, as for proteins.

    Rows are letters 0 to q - 1. Other numbers raise an error, because no threshold
    turns them into letters.

    Args:
        num_states: the number of letters of a site; None for 1 + the largest letter in
            the data, at least 2.
        objective: the loss: `PseudoLikelihood`, `families.SiteFlow` for minimum
            probability flow, `MaximumLikelihood`, or any function of an energy and
            `num_states=` that returns an objective.

    The other arguments are those of `Ising` except `binarize`; what plmc calls lambda_e
    is `strength` times the effective number of sequences. `params_` is for functions of
    `probjax.potts` such as `potts.contact_scores(params_)`.

    >>> X = np.array([[0, 0], [1, 1], [2, 2], [2, 2], [0, 1]])
    >>> model = Potts().fit(X)
    >>> bool(model.score([[2, 2]]) > model.score([[2, 0]]))
    True
    """

    _family_name = "potts"

    num_states: int | None = None
    objective: Callable[..., Objective] = PseudoLikelihood
    strength: float = FAMILIES["potts"].strength

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


@jax.jit
def _recall(params, x):
    return hopfield.recall(params, x).x


@jax.jit
def _hidden_means(params, x):
    return jax.vmap(rbm.hidden_means, (None, 0))(params, x)
