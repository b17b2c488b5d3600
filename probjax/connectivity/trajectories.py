"""Continuous states: neighbours at the ends of short Hamiltonian trajectories.

With momentum v ~ N(0, I) the dynamics lead from (x, v) to (x_1, v_1), and from
(x_1, -v_1) back to (x, -v). They preserve volume, so that

    log g(x|x_1) - log g(x_1|x) = (|v|^2 - |v_1|^2) / 2.

If the dynamics are exact and those of the model itself, this ratio cancels the
difference of the energies and every gap is zero; gaps then measure only how data and
model differ. The dynamics use the parameters at the time of the draw, which stay fixed
until the next refresh: if neighbours moved with the parameters, the flow would have no
minimum at the true parameters.

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
    """Ends of trajectories from one state."""

    x: State
    """End states; every leaf has a leading axis of trajectories."""
    log_ratio: Float[Array, " k"]
    """Kinetic energy that each trajectory lost."""
    weight: Float[Array, " k"]
    """Weight of each end: 1/k, or 0 if the trajectory diverged."""


@recipe
class Hamiltonian(Connectivity):
    """The ends of `num_draws` trajectories of the model, redrawn at each refresh.

    Args:
        step_size: size of a leapfrog step, in units of the metric.
        num_steps: number of leapfrog steps of a trajectory.
        num_draws: number of trajectories from each state, over which flow is averaged.
        metric: lengths `(n,)` or a matrix `(n, n)`, see `probjax.leapfrog`; None for
            the identity.

    At the parameters of the dynamics, gaps are small (discretisation errors):

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
        dtype = flat.dtype
        metric = None if self.metric is None else jnp.asarray(self.metric, dtype)
        space = Geometry(metric)
        step_size = jnp.asarray(self.step_size, dtype)

        def one(v):
            start = phase_at(potential, x, v)
            end = kick_drift_kick(space, potential, start, step_size, self.num_steps)
            log_ratio = (v @ v - end.v @ end.v) / 2
            rise = hamiltonian(potential, end) - hamiltonian(potential, start)
            # A rise and a fall count alike, so that a trajectory diverges if and only
            # if its reversal does.
            diverged = ~(jnp.abs(rise) < DIVERGENT)
            x_end = jax.tree.map(lambda a, b: jnp.where(diverged, a, b), x, end.x)
            weight = jnp.where(diverged, 0, 1 / self.num_draws).astype(dtype)
            return TrajectoryEnd(x_end, jnp.where(diverged, 0, log_ratio), weight)

        momenta = jax.random.normal(key, (self.num_draws, flat.size), dtype)
        return jax.lax.stop_gradient(jax.vmap(one)(momenta))

    def states(self, x: State, moves: TrajectoryEnd) -> Neighbours:
        return Neighbours(moves.x, moves.log_ratio, moves.weight)
