"""A pilot run: from base to target with a step size and a metric that follow.

The step size follows the particles' mean acceptance, with the metric of their spread a
little earlier, and the spread of E_0 - E_1 is noted: what was seen, knot by knot, is
what a `Plan` is made of.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.annealing.path import Way, towards_one
from probjax.devices import each
from probjax.potential import potential
from probjax.samplers.following import check_acceptance, is_tunable, nearer
from probjax.samplers.tuning import LENGTHS, MATRIX, Spread
from probjax.types import (
    Array,
    Base,
    Energy,
    Float,
    Params,
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
        target: the mean acceptance that step sizes come to.
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
    target: float = 0.9
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
    """All of a pilot run but its particles."""

    energy: Energy = static()
    axes: Any = static()
    num_groups: int = static()
    per_knot: int = static()
    params: Params
    base: Base
    path: Way
    sampler: Any
    pilot: Pilot

    @property
    def spread(self) -> Spread | None:
        """Of which the metric is made, if there is to be one."""
        spread = self.pilot.spread if hasattr(self.sampler, "metric") else None
        bounded = getattr(self.sampler, "bounds", None) is not None
        return LENGTHS if spread is not None and bounded else spread

    def betas(self, kind: Any) -> Float[Array, " beta"]:
        """Of all steps from knot to knot."""
        return towards_one(NUM_KNOTS * self.per_knot).astype(kind)

    def start(self, keys: PRNGKeyArray, x: State) -> Explorers:
        """Particles that have not been moved."""
        kind = float_dtype(x)
        first = self.betas(kind)[0]

        def one(key, params, x):
            model = self.path.model(self.energy, params, self.base, first)
            return self.sampler.init(random.fold_in(key, 2**31 - 1), model, x)

        states = each(one, (0, self.axes, 0))(keys, self.params, x)
        log_step = mean = None
        if is_tunable(self.sampler):
            log_step = jnp.log(jnp.asarray(self.sampler.step_size, kind))
            mean = jnp.zeros((), kind)
        return Explorers(states, log_step, self._metric(x), mean, jnp.zeros(2, kind))

    def step(self, keys: PRNGKeyArray, number: Array, now: Explorers) -> Explorers:
        """Move all particles once, and see how they took it."""
        kind = now.scatter.dtype
        # The first ones stay at the base, until the step has come to its size there.
        k = jnp.maximum(number, 0)
        betas = self.betas(kind)
        here, there = betas[k], betas[k + 1]
        sampler = self._tuned(now)

        def one(key, params, state):
            model = self.path.model(self.energy, params, self.base, here)
            step_key, init_key = random.split(random.fold_in(key, number))
            if not self.path.lasting:
                state = sampler.init(init_key, model, state.x)
            state, info = sampler.step(step_key, model, state)
            args = (self.energy, params, self.base, state)
            return state, info, self.path.fall(*args, here, there) / (there - here)

        states, info, slope = each(one, (0, self.axes, 0))(
            keys, self.params, now.states
        )
        away = _centred(slope, self.num_groups)
        away = jnp.sqrt(jnp.mean(jnp.where(jnp.isfinite(away), away, 0) ** 2))
        # Steps that rounding has left without a width tell nothing.
        told = jnp.where(there > here, jnp.stack([away, 1.0]), 0).astype(kind)
        return self._adapted(now, info)._replace(
            states=states, scatter=now.scatter + told
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
        if now.log_step is None:
            return self.sampler
        found = {"step_size": jnp.exp(now.log_step)}
        if now.metric is not None:
            found["metric"] = now.metric
        return dataclasses.replace(self.sampler, **found)

    def _adapted(self, now, info):
        """The step size a little nearer to the acceptance that is wanted."""
        if now.log_step is None:
            return now
        log_step = nearer(now.log_step, info.chance.mean(), self.pilot.target)
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
    base = exploration.base
    x = each(base.sample)(jax.random.split(start_key, num_particles))
    x = exploration.sampler.prepare(potential(type(base).energy, base), x)
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
