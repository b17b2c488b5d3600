"""Discrete Langevin sampling: all sites change at once, independently.

    q_n(a | x) ~ g(exp(gap_na)) * (1 if a = x_n, else s m_n),

with a step size s from 0 to 1 and a preconditioner m_n. With g(t) = sqrt(t) a bit flips
with probability sigmoid(gap_n / 2 + log(s m_n)). This is the proposal of Zhang et al.
with step size 1 / (-2 log s). The factor s instead is about proportional to the number
of changes, which suits its adaptation. See `probjax.samplers.informed` for g, for the
gaps and for the test with which the changes are accepted together.

Reference: Zhang, Liu and Liu, "A Langevin-like sampler for discrete distributions",
ICML 2022 (DMALA); Sun, Dai and Schuurmans, "Optimal scaling for locally balanced
proposals in discrete spaces", NeurIPS 2022, for the acceptance of 0.574.
"""

from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.checks import check_count, is_concrete
from probjax.interfaces import Sampler
from probjax.leapfrog import check_step_size
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.samplers.gibbs import mean_gap_if_cheap
from probjax.samplers.informed import (
    Balance,
    InformedState,
    accepted,
    barker,
    check_balance,
    prepared,
    state_at,
)
from probjax.states import num_sites, one_hot
from probjax.types import Array, Domain, Float, Info, PRNGKeyArray, Scalar, State


@recipe
class DiscreteLangevin(Sampler):
    """Sampler of bits or letters that changes many sites in one step.

    A step costs one value-and-gradient of the energy. Adapt the step size with `tune`,
    because the best one depends on the size and the couplings of the model.

    Args:
        step_size: factor of the odds of every change, above 0 and at most 1.
        num_states: number of letters of a site; with 2, states are bits.
        balance: function of gaps that weights the changes, `barker` or `square_root`.
            On networks of digits `barker` gave 1.3 to 1.7 times the effective draws
            per step.
        metric: preconditioner, a positive factor of the step size for each site; None
            for 1.

    >>> from probjax import sample
    >>> from probjax.samplers import tune
    >>> def energy(bias, x):
    ...     return bias @ x + jnp.sum(x) ** 2
    >>> bias, x = jnp.array([3.0, -5.0]), jnp.zeros((50, 2))
    >>> args = jax.random.key(0), energy, bias
    >>> tuned = tune(*args, x, sampler=DiscreteLangevin(0.5), num_steps=320)
    >>> draws = sample(*args, tuned.x, sampler=tuned.sampler, num_draws=200)
    >>> draws.x.mean((0, 1)).round(1).tolist()
    [0.0, 1.0]
    """

    step_size: float
    _: KW_ONLY
    num_states: int = static(default=2)
    balance: Balance = static(default=barker)
    metric: Float[Array, " site"] | None = None

    def __post_init__(self):
        check_count("num_states", self.num_states, least=2)
        check_step_size(self.step_size)
        if is_concrete(self.step_size) and np.any(np.greater(self.step_size, 1)):
            raise ValueError(f"step_size must be at most 1, got {self.step_size}")
        check_balance(self.balance)

    @property
    def domain(self) -> Domain:
        return "bits" if self.num_states == 2 else "letters"

    def num_letters(self) -> int:
        return self.num_states

    @property
    def target_acceptance(self) -> float:
        return 0.574

    @property
    def max_step_size(self) -> float:
        return 1.0

    def cached_terms(self, state: InformedState) -> Float[Array, " term"]:
        return state.terms

    def mean_gap(self, potential: Potential, x: State) -> Scalar | None:
        return mean_gap_if_cheap(potential, x, self.num_states)

    def prepare(self, potential: Potential, x: State) -> State:
        self._check_metric(num_sites(x))
        return prepared(potential, x, self.num_states)

    def _check_metric(self, size):
        if self.metric is None:
            return
        if np.shape(self.metric) != (size,):
            raise ValueError(
                f"metric must have one factor for each of {size} sites, got shape "
                f"{np.shape(self.metric)}"
            )
        if is_concrete(self.metric):
            factors = np.asarray(self.metric)
            if not (np.all(factors > 0) and np.isfinite(factors).all()):
                raise ValueError(f"metric must be positive and finite, got {factors}")

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> InformedState:
        return state_at(potential, x, self.num_states)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: InformedState
    ) -> tuple[InformedState, Info]:
        flat, unravel = ravel_pytree(state.x)
        forward = self._log_probs(potential, state)
        uniforms = random.uniform(key, flat.shape, flat.dtype)
        cumulative = jnp.cumsum(jnp.exp(forward), 1)[:, :-1]
        new = jnp.sum(uniforms[:, None] >= cumulative, 1).astype(flat.dtype)
        after = state_at(potential, unravel(new), self.num_states)
        reverse = self._log_probs(potential, after)
        log_ratio = _log_prob(reverse, flat) - _log_prob(forward, new)
        uniform = random.uniform(key, (), flat.dtype, stream=1)
        return accepted(uniform, potential, state, after, log_ratio)

    def _log_probs(self, potential, state):
        """Log probabilities (site, letter) of the letters that a step proposes."""
        flat = ravel_pytree(state.x)[0]
        gaps = potential.combine(state.gaps)
        log_factor = jnp.log(jnp.asarray(self.step_size, flat.dtype))
        if self.metric is not None:
            log_factor = log_factor + jnp.log(jnp.asarray(self.metric, flat.dtype))
        log_factor = jnp.broadcast_to(log_factor, flat.shape)
        if self.num_states == 2:
            odds = self.balance(gaps) - self.balance(jnp.zeros_like(gaps)) + log_factor
            on = jnp.where(flat == 1, -odds, odds)
            return jax.nn.log_sigmoid(jnp.stack([-on, on], 1))
        own = one_hot(flat, self.num_states) == 1
        weights = self.balance(gaps) + jnp.where(own, 0, log_factor[:, None])
        return jax.nn.log_softmax(weights, 1)


def _log_prob(log_probs, flat):
    """Log probability of a state whose sites have these log probabilities."""
    # A product with 0 would be NaN for letters that are never proposed.
    own = one_hot(flat, log_probs.shape[1]) == 1
    return jnp.sum(jnp.where(own, log_probs, 0))
