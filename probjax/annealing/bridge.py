"""Distributions between a base and a target, and the sampler that moves along them.

A pilot run and the run after it both move particles along a `Bridge`: at b_k a particle
takes a step of the sampler, and the increment of its log weight is

    E_(b_k)(x) - E_(b_k+1)(x).
"""

from typing import Any

from probjax import random
from probjax.annealing.paths import Ends, Path
from probjax.bases.checks import check_states
from probjax.devices import sharded_vmap
from probjax.interfaces import Base, Sampler
from probjax.recipe import recipe, static
from probjax.types import (
    Array,
    Energy,
    Float,
    Info,
    Params,
    PRNGKeyArray,
    Scalar,
    State,
    check_info,
)


@recipe
class Bridge:
    """A path from a base to a target with the sampler that moves particles along it."""

    energy: Energy = static()
    axes: Any = static()
    """Axes of `params` that index particles, in the form of `vmap`'s `in_axes`."""
    params: Params
    base: Base
    path: Path
    sampler: Sampler

    def ends(self, params: Params) -> Ends:
        """Return the ends of the path of one particle."""
        return Ends(self.energy, params, self.base)

    def draw(self, keys: PRNGKeyArray) -> State:
        """Draw particles from the base."""
        return check_states(self.sampler, sharded_vmap(self.base.sample)(keys))

    def start(
        self, keys: PRNGKeyArray, x: State, sampler: Sampler, beta: Scalar
    ) -> Any:
        """Create the sampler's states at `beta`."""

        def one(key, params, x):
            model = self.path.potential(self.ends(params), beta)
            # All numbers of steps are smaller than this one.
            return sampler.init(random.fold_in(key, 2**31 - 1), model, x)

        return sharded_vmap(one, (0, self.axes, 0))(keys, self.params, x)

    def increments(
        self, states: Any, sampler: Sampler, here: Scalar, there: Scalar
    ) -> Float[Array, " particle"]:
        """Compute E_here(x) - E_there(x) for all particles."""

        def one(state, params):
            ends = self.ends(params)
            return self.path.increment(ends, sampler, state, here, there)

        return sharded_vmap(one, (0, self.axes))(states, self.params)

    def offsets(self, x: State) -> Float[Array, " particle"]:
        """Compute base.energy(x) - E_0(x) for all particles."""

        def one(x, params):
            return self.path.offset(self.ends(params), x)

        return sharded_vmap(one, (0, self.axes))(x, self.params)

    def step(
        self,
        keys: PRNGKeyArray,
        number: Array,
        states: Any,
        sampler: Sampler,
        here: Scalar,
        there: Scalar,
    ) -> tuple[Any, Info, Float[Array, " particle"]]:
        """Move all particles at `here`, and compute their increments to `there`."""

        def one(key, params, state):
            ends = self.ends(params)
            model = self.path.potential(ends, here)
            step_key = random.fold_in(key, number)
            if not self.path.keeps_terms:
                init_key, step_key = random.split(step_key)
                state = sampler.init(init_key, model, state.x)
            state, info = sampler.step(step_key, model, state)
            increment = self.path.increment(ends, sampler, state, here, there)
            return state, check_info(info), increment

        return sharded_vmap(one, (0, self.axes, 0))(keys, self.params, states)
