"""How a pilot run adapts a sampler on its way from base to target.

The step size follows the particles' mean acceptance, with the metric of their spread a
little earlier, and the spread of E_0 - E_1 is noted: what was seen, knot by knot, is
what a `Schedule` is made of. See `probjax.annealing.planning`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.annealing.schedule import Schedule
from probjax.recipe import recipe, static
from probjax.samplers.adaptation import adapt_log_step, check_acceptance
from probjax.samplers.tuning import LENGTHS, MATRIX, Spread
from probjax.trees import float_dtype
from probjax.types import Array, Float, Info, Sampler, Scalar, State

NUM_KNOTS = 40


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


class Tuning(NamedTuple):
    """A sampler's settings while a pilot run adapts them."""

    log_step: Scalar | None
    """Logarithm of the step size; None if it is not adapted."""
    metric: Array | None
    """Metric since the last knot; None for the sampler's own."""
    total_log_step: Any
    """Sum of `log_step` over the steps since the last knot."""
    scatter: Float[Array, " 2"]
    """Sum of the spreads of E_0 - E_1 since then, and the number of its terms."""


@recipe
class Adaptation:
    """How the settings of a sampler follow its particles.

    A pilot run and the run after it are one compiled program, in which nothing is
    adapted unless it is `active`.
    """

    pilot: Pilot
    sampler: Sampler
    num_groups: int = static()
    active: Any

    @property
    def spread(self) -> Spread | None:
        """Spread from which the metric is made; None if there is no metric."""
        forms, spread = self.sampler.metrics, self.pilot.spread
        if spread is None or not forms:
            return None
        return spread if spread.form in forms else LENGTHS

    @property
    def target(self) -> Any:
        """Acceptance to which the step size is adapted; None to adapt nothing."""
        own = self.sampler.target_acceptance
        return own if own is None or self.pilot.target is None else self.pilot.target

    def start(self, x: State) -> Tuning:
        """Return the first settings, for particles at `x`."""
        kind = float_dtype(x)
        scatter = jnp.zeros(2, kind)
        if self.target is None:
            return Tuning(None, None, None, scatter)
        log_step = jnp.log(jnp.asarray(self.sampler.step_size, kind))
        metric = None
        if self.spread is not None:
            shape = jax.eval_shape(self._metric, x)
            metric = jnp.zeros(shape.shape, shape.dtype)
        return Tuning(log_step, metric, jnp.zeros((), kind), scatter)

    def begun(self, tuning: Tuning, x: State) -> Tuning:
        """Return the settings at the beginning of a knot, for particles at `x`."""
        sums = (tuning.total_log_step, tuning.scatter)
        total, scatter = jax.tree.map(jnp.zeros_like, sums)
        metric = tuning.metric
        if metric is not None:
            metric = jax.lax.cond(self.active, lambda: self._metric(x), lambda: metric)
        return Tuning(tuning.log_step, metric, total, scatter)

    def current(self, tuning: Tuning, plan: Schedule, beta: Scalar) -> Sampler:
        """Return the sampler as it is now, or as planned if nothing is adapted."""
        if tuning.log_step is None:
            return self.sampler
        planned, now = plan.settings(beta), (tuning.log_step, tuning.metric)
        log_step, metric = jax.tree.map(partial(jnp.where, self.active), now, planned)
        return self.sampler.adapted(jnp.exp(log_step), metric)

    def adapted(
        self, tuning: Tuning, info: Info, increment: Array, here: Scalar, there: Scalar
    ) -> Tuning:
        """Return the settings after a step of all particles from `here` to `there`."""
        # Without the metric, which would be copied in every step.
        before = tuning._replace(metric=None)

        def adapt():
            away = _centred(increment / (there - here), self.num_groups)
            away = jnp.sqrt(jnp.mean(jnp.where(jnp.isfinite(away), away, 0) ** 2))
            # Steps that rounding has left without a width carry no information.
            seen = jnp.where(there > here, jnp.stack([away, jnp.ones_like(away)]), 0)
            scatter = before.scatter + seen.astype(here.dtype)
            if before.log_step is None:
                return before._replace(scatter=scatter)
            acceptance = info.acceptance.mean()
            log_step = adapt_log_step(before.log_step, acceptance, self.target)
            return Tuning(log_step, None, before.total_log_step + log_step, scatter)

        after = jax.lax.cond(self.active, adapt, lambda: before)
        return after._replace(metric=tuning.metric)

    def found(self, tuning: Tuning, beta: Scalar, num_steps: Array) -> Found:
        """Return what was seen in a knot of `num_steps` steps about `beta`."""
        total = tuning.total_log_step
        return Found(
            beta=beta,
            scatter=tuning.scatter[0] / jnp.maximum(tuning.scatter[1], 1),
            log_step=None if total is None else total / num_steps.astype(total.dtype),
            metric=tuning.metric,
        )

    def _metric(self, x):
        return _metric(self.spread, x, self.num_groups)


def _centred(rows, num_groups):
    """What each is from the median of its group."""
    groups = rows.reshape(num_groups, -1, *rows.shape[1:])
    return (groups - jnp.median(groups, 1, keepdims=True)).reshape(rows.shape)


def _metric(spread: Any, x: State, num_groups: int) -> Array:
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
