"""Metropolis-Hastings sampling with proposals from a connectivity.

A neighbour x' is drawn in proportion to its weight in the connectivity and accepted
with probability

    min(1, exp(gap) W(x) / W(x')),    gap = E(x) - E(x') + log g(x|x') - log g(x'|x),

where W(x) is the total weight of the neighbours of x.

Reference: Metropolis et al., J. Chem. Phys. 21, 1087 (1953); Hastings, Biometrika 57,
97 (1970).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.checks import check_count, check_interface
from probjax.interfaces import Connectivity, Sampler
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.types import (
    Array,
    Domain,
    Float,
    Info,
    Neighbours,
    PRNGKeyArray,
    Scalar,
    State,
)


class MetropolisState(NamedTuple):
    """State of a Metropolis chain."""

    x: State
    """Current state."""
    terms: Float[Array, " term"]
    """Unweighted energies at `x`."""


@recipe
class Metropolis(Sampler):
    """Metropolis-Hastings sampler.

    Args:
        connectivity: rule that proposes neighbours. One that draws few neighbours, such
            as `RandomFlips(1)`, costs one energy per proposal. One that lists all of
            them, such as `BitFlips()`, also has to create the list.
        num_moves: number of proposals in a step.

    >>> from probjax import sample
    >>> from probjax.connectivity import BitFlips
    >>> def energy(bias, x):
    ...     return bias @ x
    >>> args = jax.random.key(0), energy, jnp.log(jnp.array([3.0])), jnp.zeros((20, 1))
    >>> draws = sample(*args, sampler=Metropolis(BitFlips()), num_draws=500)
    >>> bool(abs(draws.x.mean() - 0.25) < 0.05)
    True
    """

    connectivity: Connectivity
    num_moves: int = static(default=1)

    def __post_init__(self):
        check_count("num_moves", self.num_moves)

    @property
    def domain(self) -> Domain:
        return self.connectivity.domain

    def num_letters(self) -> int | None:
        return self.connectivity.num_letters()

    def cached_terms(self, state: MetropolisState) -> Float[Array, " term"]:
        return state.terms

    def prepare(self, potential: Potential, x: State) -> State:
        check_interface("connectivity", self.connectivity, Connectivity, "BitFlips()")
        return self.connectivity.prepare(x)

    def init(
        self, key: PRNGKeyArray, potential: Potential, x: State
    ) -> MetropolisState:
        return MetropolisState(x, potential.terms(x))

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: MetropolisState
    ) -> tuple[MetropolisState, Info]:
        def move(state, key):
            draw_key, pick_key, accept_key = jax.random.split(key, 3)
            moves = self.connectivity.draw(draw_key, potential, state.x)
            near = self.connectivity.states(state.x, moves)
            choice = jax.random.categorical(pick_key, jnp.log(near.weight))
            x = jax.tree.map(lambda leaf: leaf[choice], near.x)
            terms = potential.terms(x)
            gap = potential.combine(state.terms - terms)
            log_odds = gap + self.log_ratio(near, x, moves, choice)
            # Comparisons with NaN are false, so that a NaN energy is rejected.
            accept = jnp.log(random.uniform(accept_key, (), gap.dtype)) < log_odds
            proposal = MetropolisState(x, terms)
            state = jax.tree.map(lambda a, b: jnp.where(accept, a, b), proposal, state)
            return state, accept.astype(gap.dtype)

        state, accepts = jax.lax.scan(
            move, state, jax.random.split(key, self.num_moves)
        )
        return state, Info(accepts.mean())

    def log_ratio(
        self, near: Neighbours, x_new: State, moves: State, choice: Array
    ) -> Scalar:
        """Log ratio of the proposal probabilities, reverse over forward.

        Args:
            near: neighbours of the current state.
            x_new: the neighbour that was chosen.
            choice: index of `x_new` in `near`.
        """
        reverse = self.connectivity.states(x_new, moves).weight.sum()
        return near.log_ratio[choice] + jnp.log(near.weight.sum()) - jnp.log(reverse)
