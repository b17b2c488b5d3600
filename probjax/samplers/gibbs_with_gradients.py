"""Gibbs sampling with gradients: single changes, proposed by their gaps.

    q(n, a | x) = g(exp(gap_na)) / sum over sites m and letters b of g(exp(gap_mb)),

without the letters that the sites have. See `probjax.samplers.informed` for g, for the
gaps and for the test with which changes are accepted.

Reference: Grathwohl et al., "Oops I took a gradient: scalable sampling for discrete
distributions", ICML 2021.
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.checks import check_count
from probjax.interfaces import Sampler
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.samplers.gibbs import mean_gap_if_cheap
from probjax.samplers.informed import (
    Balance,
    InformedState,
    accepted,
    check_balance,
    prepared,
    square_root,
    state_at,
)
from probjax.states import one_hot
from probjax.types import Array, Domain, Float, Info, PRNGKeyArray, Scalar, State


@recipe
class GibbsWithGradients(Sampler):
    """Sampler of bits or letters that proposes one informed change at a time.

    Args:
        num_states: number of letters of a site; with 2, states are bits.
        num_moves: number of proposals in a step; each costs one value-and-gradient.
        balance: function of gaps that weights the changes, `square_root` or `barker`.

    >>> from probjax import sample
    >>> def energy(bias, x):
    ...     return bias @ x + jnp.sum(x) ** 2
    >>> bias, x = jnp.array([3.0, -5.0]), jnp.zeros((50, 2))
    >>> args = jax.random.key(0), energy, bias, x
    >>> draws = sample(*args, sampler=GibbsWithGradients(), num_draws=200)
    >>> draws.x.mean((0, 1)).round(1).tolist()
    [0.0, 1.0]
    """

    num_states: int = static(default=2)
    num_moves: int = static(default=1)
    balance: Balance = static(default=square_root)

    def __post_init__(self):
        check_count("num_states", self.num_states, least=2)
        check_count("num_moves", self.num_moves)
        check_balance(self.balance)

    @property
    def domain(self) -> Domain:
        return "bits" if self.num_states == 2 else "letters"

    def num_letters(self) -> int:
        return self.num_states

    def cached_terms(self, state: InformedState) -> Float[Array, " term"]:
        return state.terms

    def mean_gap(self, potential: Potential, x: State) -> Scalar | None:
        return mean_gap_if_cheap(potential, x, self.num_states)

    def prepare(self, potential: Potential, x: State) -> State:
        return prepared(potential, x, self.num_states)

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> InformedState:
        return state_at(potential, x, self.num_states)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: InformedState
    ) -> tuple[InformedState, Info]:
        def move(state, key):
            flat, unravel = ravel_pytree(state.x)
            forward = self._log_probs(potential, state)
            uniforms = random.uniform(key, forward.shape, forward.dtype)
            # The largest of Gumbel numbers plus log probabilities is a draw.
            choice = jnp.argmax(forward - jnp.log(-jnp.log(uniforms)))
            site, letter, back = self._change(flat, choice)
            x = unravel(flat.at[site].set(letter))
            after = state_at(potential, x, self.num_states)
            reverse = self._log_probs(potential, after)
            log_ratio = reverse[back] - forward[choice]
            uniform = random.uniform(key, (), forward.dtype, stream=1)
            return accepted(uniform, potential, state, after, log_ratio)

        keys = jax.random.split(key, self.num_moves)
        state, infos = jax.lax.scan(move, state, keys)
        return state, jax.tree.map(jnp.mean, infos)

    def _log_probs(self, potential, state):
        """Log probabilities of the changes: of flips, or of all letters in a row."""
        weights = self.balance(potential.combine(state.gaps))
        if self.num_states > 2:
            own = one_hot(ravel_pytree(state.x)[0], self.num_states) == 1
            weights = jnp.where(own, -jnp.inf, weights).ravel()
        return jax.nn.log_softmax(weights)

    def _change(self, flat, choice):
        """Site and new letter of a change, and the index of the reverse change."""
        if self.num_states == 2:
            return choice, 1 - flat[choice], choice
        site, letter = choice // self.num_states, choice % self.num_states
        back = site * self.num_states + flat[site].astype(choice.dtype)
        return site, letter.astype(flat.dtype), back
