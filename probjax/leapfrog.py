"""Leapfrog integration of Hamiltonian dynamics, which is reversible and keeps volume.

    H(x, v) = E(x) + v'v / 2,    dx/dt = A v,    dv/dt = -A' grad E(x)

The metric A is a length for each coordinate, or a matrix such that AA' approximates the
covariance of x. Momenta v have unit variance for every metric.

    kick-drift-kick:   v -= e/2 A'g(x);  x += e A v;  v -= e/2 A'g(x)
    drift-kick-drift:  x += e/2 A v;  v -= e A'g(x);  x += e/2 A v

Both are of second order. A kick-drift-kick step ends with the gradient that begins the
next step, so that each step costs one evaluation. Drift-kick-drift steps need one more
evaluation at the end of the trajectory, for its energy. A coordinate that would cross a
bound is reflected, and its momentum changes sign.

Reference: Neal, "MCMC using Hamiltonian dynamics", 2011; thesis, "Hamiltonian Monte
Carlo Sampling", and for bounds "Hamiltonian Annealed Importance Sampling".
"""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax.checks import is_concrete
from probjax.potential import Potential
from probjax.recipe import recipe
from probjax.types import Array, ArrayLike, Float, Scalar, State

DIVERGENT = 1000.0


class Phase(NamedTuple):
    """A state with its momentum, and the energies and gradients at the state."""

    x: State
    """State (position)."""
    v: Float[Array, " n"]
    """Momentum, of unit variance, in the order of `ravel(x)`."""
    terms: Float[Array, " term"]
    """Unweighted energies of the potential at `x`."""
    gradients: Float[Array, "term n"]
    """Unweighted gradients of the energies at `x`."""


@recipe
class Bounds:
    """Bounds of the coordinates: one number for all coordinates, or one for each.

    A coordinate that would cross a bound, such as in `HMC(0.5,
    bounds=Bounds(lower=0.0))`, is reflected:

    >>> space = Geometry(bounds=Bounds(lower=0.0))
    >>> x, v = space.drift(jnp.array([1.0]), jnp.array([-3.0]), 1.0)
    >>> x.tolist(), v.tolist()
    ([2.0], [3.0])
    """

    lower: ArrayLike = -np.inf
    upper: ArrayLike = np.inf

    def __post_init__(self):
        both = (self.lower, self.upper)
        if is_concrete(both) and not np.all(np.less(*both)):
            raise ValueError(
                f"lower must be below upper, got {self.lower} and {self.upper}"
            )

    def check(self, size: int) -> None:
        """Raise if the bounds do not fit states of `size` coordinates."""
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            shape = np.shape(bound)
            if shape not in ((), (size,)):
                raise ValueError(
                    f"{name} must be one number or one for each of {size} coordinates, "
                    f"got shape {shape}"
                )


@recipe
class Geometry:
    """Metric and bounds of a state; None for the identity and for no bounds."""

    metric: Float[Array, "..."] | None = None
    bounds: Bounds | None = None

    def drift(self, x: State, v: Float[Array, " n"], time: Scalar) -> tuple:
        """Return `x` and `v` after `time` without forces: x += time A v, reflected."""
        flat, unravel = ravel_pytree(x)
        if self.metric is None:
            speed = v
        else:
            speed = self.metric @ v if self.metric.ndim == 2 else self.metric * v
        flat = flat + time * speed
        if self.bounds is not None:
            flat, sign = _reflected(flat, self.bounds)
            v = sign * v
        return unravel(flat), v

    def kick(self, phase: Phase, potential: Potential, time: Scalar) -> Phase:
        """Return the phase after forces have acted for `time`: v -= time A' grad E."""
        force = -potential.combine(phase.gradients)
        if self.metric is not None:
            metric = self.metric
            force = force @ metric if metric.ndim == 2 else force * metric
        return phase._replace(v=phase.v + time * force)


class Integrator(Protocol):
    """Integrator of `num_steps` leapfrog steps, such as `kick_drift_kick`."""

    def __call__(
        self,
        space: Geometry,
        potential: Potential,
        phase: Phase,
        step_size: Scalar,
        num_steps: int | Array,
        /,
    ) -> Phase: ...


def check_step_size(step_size: ArrayLike) -> None:
    """Raise if `step_size` is not positive and finite."""
    if not is_concrete(step_size):
        return
    if not (np.all(np.greater(step_size, 0)) and np.all(np.isfinite(step_size))):
        raise ValueError(f"step_size must be positive and finite, got {step_size}")


def check_metric(metric: ArrayLike | None, size: int) -> None:
    """Raise if `metric` is not a metric for states of `size` coordinates."""
    shape = np.shape(metric) if metric is not None else (size,)
    if shape not in ((), (size,), (size, size)):
        raise ValueError(
            f"metric must be one length, {size} lengths or a {size} x {size} matrix, "
            f"got shape {shape}"
        )
    if metric is None or not is_concrete(metric):
        return
    positive = len(shape) == 2 or np.all(np.greater(metric, 0))
    if not (positive and np.isfinite(metric).all()):
        raise ValueError(
            f"metric must be finite, and its lengths positive, got {metric}"
        )


def phase_at(potential: Potential, x: State, v: Float[Array, " n"]) -> Phase:
    """Return the phase at `x` and `v`; the cost is one evaluation of the potential."""
    terms, gradients = potential.terms_and_gradients(x)
    flat = jax.vmap(lambda gradient: ravel_pytree(gradient)[0])(gradients)
    return Phase(x, v, terms, flat)


def kick_drift_kick(
    space: Geometry,
    potential: Potential,
    phase: Phase,
    step_size: Scalar,
    num_steps: int | Array,
) -> Phase:
    """Leapfrog steps that begin and end with half a kick; one evaluation per step.

    >>> from probjax.potential import potential
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> model = potential(energy, 1.0)
    >>> start = phase_at(model, jnp.array([1.0]), jnp.array([0.0]))
    >>> end = kick_drift_kick(Geometry(), model, start, 1.0, 1)
    >>> end.x.tolist(), end.v.tolist()  # v = -1/2, x = 1/2, v = -3/4
    ([0.5], [-0.75])
    """

    def step(_, phase):
        x, v = space.drift(phase.x, phase.v, step_size)
        return space.kick(phase_at(potential, x, v), potential, step_size)

    # The loop takes whole kicks; the half kick too much at the end is undone.
    phase = space.kick(phase, potential, step_size / 2)
    phase = _repeat(num_steps, step, phase)
    return space.kick(phase, potential, -step_size / 2)


def drift_kick_drift(
    space: Geometry,
    potential: Potential,
    phase: Phase,
    step_size: Scalar,
    num_steps: int | Array,
) -> Phase:
    """Leapfrog steps that begin and end with half a drift.

    The cost is one evaluation per step, and one at the end.

    >>> from probjax.potential import potential
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> model = potential(energy, 1.0)
    >>> start = phase_at(model, jnp.array([1.0]), jnp.array([0.0]))
    >>> end = drift_kick_drift(Geometry(), model, start, 1.0, 1)
    >>> end.x.tolist(), end.v.tolist()  # x = 1, v = -1, x = 1/2
    ([0.5], [-1.0])
    """

    def step(_, phase):
        x, v = space.drift(phase.x, phase.v, step_size / 2)
        phase = space.kick(phase_at(potential, x, v), potential, step_size)
        x, v = space.drift(phase.x, phase.v, step_size / 2)
        return phase._replace(x=x, v=v)

    phase = _repeat(num_steps, step, phase)
    return phase_at(potential, phase.x, phase.v)


def hamiltonian(potential: Potential, phase: Phase) -> Scalar:
    """Compute E(x) + v'v / 2 at the potential's weights."""
    return potential.combine(phase.terms) + phase.v @ phase.v / 2


def _repeat(count, step, phase):
    if isinstance(count, int) and count == 1:
        return step(0, phase)
    return jax.lax.fori_loop(0, count, step, phase)


def _reflected(x, bounds):
    """Reflect `x` into its bounds; also return -1 after an odd number of reflections.

    The position of a free particle between two bounds is periodic in the distance
    travelled, with a period of twice the distance between the bounds. The nearest
    multiple of the period is subtracted.
    """
    lower, upper = (
        jnp.broadcast_to(jnp.asarray(bound, x.dtype), x.shape)
        for bound in (bounds.lower, bounds.upper)
    )
    below, above = jnp.isfinite(lower), jnp.isfinite(upper)
    # Depth is measured from the lower bound, or from the upper one if that is the only.
    base = jnp.where(below, lower, jnp.where(above, upper, 0))
    inward = jnp.where(below, 1, -1).astype(x.dtype)
    depth = inward * (x - base)
    round_trip = jnp.where(below & above, 2 * (upper - lower), 1)
    rounds = jnp.where(below & above, jnp.round(depth / round_trip), 0)
    depth = depth - rounds * round_trip
    folded = jnp.clip(base + inward * jnp.abs(depth), lower, upper)
    # Coordinates that crossed no bound are returned unrounded.
    inside = (lower <= x) & (x <= upper)
    turned = ~inside & (depth < 0)
    return jnp.where(inside, x, folded), jnp.where(turned, -1, 1).astype(x.dtype)
