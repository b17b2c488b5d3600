"""A pilot run: from base to target with a step size and a metric that follow.

The step size follows the particles' mean acceptance, with the metric of their spread a
little earlier, and the spread of E_0 - E_1 is noted: what was seen, knot by knot, is
what a `Plan` is made of.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.annealing.bridge import Bridge
from probjax.annealing.path import towards_one
from probjax.samplers.following import check_acceptance, nearer
from probjax.samplers.tuning import LENGTHS, MATRIX, Spread
from probjax.types import (
    Array,
    Float,
    PRNGKeyArray,
    Scalar,
    State,
    float_dtype,
    recipe,
    static,
)

NUM_KNOTS, NUM_SETTLING = 40, 50


@recipe
class Pilot:
    """How a plan is found.

    Args:
        spread: `MATRIX` or `LENGTHS`, what metric a sampler that has one is given; None
            to leave it as it is. A matrix costs as much as the energy of a product of
            experts; lengths are for states of many hundred coordinates. Within bounds
            only lengths can be used, and are.
        target: mean acceptance to which step sizes are adapted; None for the sampler's
            `target_acceptance`.
        share: how much longer a run gets by its pilot, which takes 450 to 4,050 steps.

    >>> from probjax import Bernoulli, HeatBath, ais, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> args = jax.random.key(0), ising.energy, params, Bernoulli(2)
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20)
    >>> found = ais(*args, pilot=Pilot(share=0.2), **options)
    >>> bool((jnp.diff(found.plan.betas) > 0).all())
    True
    """

    spread: Spread | None = static(default=MATRIX)
    target: float | None = None
    share: float = static(default=0.1)

    def __post_init__(self):
        check_acceptance(self.target)


class Found(NamedTuple):
    """What a pilot saw, knot by knot."""

    beta: Array
    """Where the knots are."""
    scatter: Array
    """The spread of E_0 - E_1 over the particles there."""
    log_step: Array | None
    """The logarithm of the step size; None for a sampler that has none."""
    metric: Array | None
    """The metric; None for the sampler's own."""


class Explorers(NamedTuple):
    """Where a pilot run is."""

    states: Any
    """The sampler's."""
    log_step: Scalar | None
    """The logarithm of its step size by now; None if it has none."""
    metric: Array | None
    """Its metric since the last knot; None for its own."""
    mean_log_step: Scalar | None
    """Its mean since the last knot, once all steps until the next are taken."""
    scatter: Float[Array, " 2"]
    """The spread of E_0 - E_1 since then, summed, and of how many steps."""


@recipe
class Exploration:
    """All of a pilot run except its particles."""

    bridge: Bridge
    pilot: Pilot
    num_groups: int = static()
    per_knot: int = static()

    @property
    def spread(self) -> Spread | None:
        """Spread from which the metric is made; None if there is no metric."""
        forms, spread = self.bridge.sampler.metrics, self.pilot.spread
        if spread is None or not forms:
            return None
        return spread if spread.form in forms else LENGTHS

    @property
    def target(self) -> Any:
        """Acceptance to which the step size is adapted; None to adapt nothing."""
        own = self.bridge.sampler.target_acceptance
        return own if own is None or self.pilot.target is None else self.pilot.target

    def betas(self, kind: Any) -> Float[Array, " beta"]:
        """Return the schedule of all steps from knot to knot."""
        return towards_one(NUM_KNOTS * self.per_knot).astype(kind)

    def start(self, keys: PRNGKeyArray, x: State) -> Explorers:
        """Create particles that have not been moved."""
        kind = float_dtype(x)
        sampler = self.bridge.sampler
        states = self.bridge.start(keys, x, sampler, self.betas(kind)[0])
        log_step = mean = None
        if self.target is not None:
            log_step = jnp.log(jnp.asarray(sampler.step_size, kind))
            mean = jnp.zeros((), kind)
        return Explorers(states, log_step, self._metric(x), mean, jnp.zeros(2, kind))

    def step(self, keys: PRNGKeyArray, number: Array, now: Explorers) -> Explorers:
        """Move all particles at distribution `number`, and adapt the sampler."""
        kind = now.scatter.dtype
        betas = self.betas(kind)
        # The first steps stay at the base until the step size has adapted to it.
        place = jnp.maximum(number, 0)
        here, there = betas[place], betas[place + 1]
        states, info, increment = self.bridge.step(
            keys, number, now.states, self._tuned(now), here, there
        )
        away = _centred(increment / (there - here), self.num_groups)
        away = jnp.sqrt(jnp.mean(jnp.where(jnp.isfinite(away), away, 0) ** 2))
        # Steps that rounding has left without a width carry no information.
        seen = jnp.where(there > here, jnp.stack([away, 1.0]), 0).astype(kind)
        return self._adapted(now, info)._replace(
            states=states, scatter=now.scatter + seen
        )

    def knot(
        self, keys: PRNGKeyArray, now: Explorers, number: Array
    ) -> tuple[Explorers, Found]:
        """The steps of one knot, and what was seen there."""
        first = number * self.per_knot
        now = self._run(keys, now, first, first + self.per_knot)
        found = Found(
            beta=self.betas(now.scatter.dtype)[first + self.per_knot // 2],
            scatter=now.scatter[0] / jnp.maximum(now.scatter[1], 1),
            log_step=now.mean_log_step,
            metric=now.metric,
        )
        return now._replace(metric=self._metric(now.states.x)), found

    def run(self, keys: PRNGKeyArray, x: State) -> Found:
        """All of it from draws of the base."""
        now = self._run(keys, self.start(keys, x), -NUM_SETTLING, 0)
        _, found = jax.lax.scan(partial(self.knot, keys), now, jnp.arange(NUM_KNOTS))
        return found

    def _run(self, keys, now, first, last):
        """Steps number `first` to `last` - 1, their sums from 0."""
        sums = (now.mean_log_step, now.scatter)
        mean, scatter = jax.tree.map(jnp.zeros_like, sums)
        now = now._replace(mean_log_step=mean, scatter=scatter)
        return jax.lax.fori_loop(first, last, partial(self.step, keys), now)

    def _tuned(self, now):
        sampler = self.bridge.sampler
        if now.log_step is None:
            return sampler
        return sampler.adapted(jnp.exp(now.log_step), now.metric)

    def _adapted(self, now, info):
        """The step size a little nearer to the acceptance that is wanted."""
        if now.log_step is None:
            return now
        log_step = nearer(now.log_step, info.acceptance.mean(), self.target)
        mean = now.mean_log_step + log_step / self.per_knot
        return now._replace(log_step=log_step, mean_log_step=mean)

    def _metric(self, x):
        if self.spread is None:
            return None
        return _metric(self.spread, x, self.num_groups)


@partial(jax.jit, static_argnums=2)
def explore(exploration: Exploration, key: PRNGKeyArray, num_particles: int) -> Found:
    """What a pilot run of so many particles sees."""
    start_key, run_key = jax.random.split(key)
    x = exploration.bridge.draw(jax.random.split(start_key, num_particles))
    return exploration.run(jax.random.split(run_key, num_particles), x)


def _centred(rows, num_groups):
    """What each is from the median of its group."""
    groups = rows.reshape(num_groups, -1, *rows.shape[1:])
    return (groups - jnp.median(groups, 1, keepdims=True)).reshape(rows.shape)


def _metric(spread: Spread, x: State, num_groups: int) -> Array:
    """Of particles that may have heavy tails: far ones count as if they were nearer."""
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(x)
    count, size = rows.shape
    away = _centred(rows, num_groups)
    # Of normal coordinates 1.4826 times this is the standard deviation.
    lengths = 1.4826 * jnp.median(jnp.abs(away), 0)
    lengths = jnp.where(lengths > 0, lengths, jnp.maximum(away.std(0), 1e-30))
    scaled = away / lengths[None]
    radius = jnp.linalg.norm(scaled, axis=1, keepdims=True) / jnp.sqrt(size)
    scaled = scaled / jnp.maximum(radius / 2, 1)
    square = jax.vmap(spread.square)(scaled).mean(0)
    unit = spread.unit(size).astype(square.dtype)
    weight = count / (count + size + 5)
    shrunk = weight * square + (1 - weight) * unit
    inner = spread.metric(shrunk)
    return lengths[:, None] * inner if inner.ndim == 2 else lengths * inner
