"""Continuous states: neighbours at the ends of short Hamiltonian trajectories.

With momentum v ~ N(0, I) the dynamics lead from (x, v) to (x', v'), and from (x', -v')
back, without change of volume, so that

    log g(x|x') - log g(x'|x) = (v'v - v''v') / 2.

Along exact dynamics of the model itself that ratio makes up for the energies, and every
gap is zero; what is left to learn from is where data and model differ. The dynamics run
at parameters that are frozen when the neighbours are drawn: neighbours that moved with
the parameters would leave the flow without a minimum at the truth.

Reference: thesis, "Sampling the Connectivity Function g_ij"; Sohl-Dickstein, Battaglino
and DeWeese, PRL 107, 220601 (2011).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count
from probjax.interfaces import Connectivity
from probjax.leapfrog import (
    DIVERGENT,
    Geometry,
    check_metric,
    check_step_size,
    hamiltonian,
    kick_drift_kick,
    phase_at,
)
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.states import num_sites
from probjax.trees import floating
from probjax.types import Array, Domain, Float, Neighbours, PRNGKeyArray, State


class TrajectoryEnd(NamedTuple):
    """Where trajectories ended."""

    x: State
    """Leaves with a leading axis of trajectories."""
    log_ratio: Float[Array, " k"]
    """The kinetic energy that each has lost."""
    weight: Float[Array, " k"]
    """What each counts: nothing if it diverged."""


@recipe
class Hamiltonian(Connectivity):
    """The ends of `num_draws` trajectories of the model, anew at every refresh.

    Args:
        step_size: of the leapfrog steps, in units of the metric.
        num_steps: how many of them.
        num_draws: trajectories from each state, which are averaged.
        metric: lengths, or a matrix; see `probjax.leapfrog`.

    Along dynamics of the model itself gaps all but vanish:

    >>> from probjax.potential import potential
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> ends, model, x = Hamiltonian(0.1), potential(energy, 1.0), jnp.ones(2)
    >>> gaps = ends.gaps(model, x, ends.draw(jax.random.key(0), model, x))
    >>> bool(jnp.abs(gaps.gap).max() < 0.05)
    True
    """

    step_size: float
    num_steps: int = static(default=1)
    num_draws: int = static(default=1)
    metric: Float[Array, "..."] | None = None

    def __post_init__(self):
        check_count("num_steps", self.num_steps)
        check_count("num_draws", self.num_draws)
        check_step_size(self.step_size)

    @property
    def domain(self) -> Domain:
        return "reals"

    def prepare(self, x: State) -> State:
        x = jax.tree.map(floating, x)
        check_metric(self.metric, num_sites(x))
        return x

    def draw(self, key: PRNGKeyArray, potential: Potential, x: State) -> TrajectoryEnd:
        flat, _ = ravel_pytree(x)
        kind = flat.dtype
        space = Geometry(
            None if self.metric is None else jnp.asarray(self.metric, kind)
        )
        step_size = jnp.asarray(self.step_size, kind)

        def one(v):
            start = phase_at(potential, x, v)
            end = kick_drift_kick(space, potential, start, step_size, self.num_steps)
            log_ratio = (v @ v - end.v @ end.v) / 2
            rise = hamiltonian(potential, end) - hamiltonian(potential, start)
            # Either way, so that trajectories and their reversals are treated alike.
            stayed = ~(jnp.abs(rise) < DIVERGENT)
            there = jax.tree.map(lambda a, b: jnp.where(stayed, a, b), x, end.x)
            share = jnp.where(stayed, 0, 1 / self.num_draws)
            return TrajectoryEnd(
                there, jnp.where(stayed, 0, log_ratio), share.astype(kind)
            )

        momenta = jax.random.normal(key, (self.num_draws, flat.size), kind)
        return jax.lax.stop_gradient(jax.vmap(one)(momenta))

    def states(self, x: State, moves: TrajectoryEnd) -> Neighbours:
        return Neighbours(moves.x, moves.log_ratio, moves.weight)
