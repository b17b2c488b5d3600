"""Hamiltonian Monte Carlo with a momentum that persists.

A step refreshes the momentum v in part, follows the dynamics for a *leap* of several
leapfrog steps, and accepts or rejects the state at its end:

    (x, v) -> L(x, v)   with probability min(1, p(L(x, v)) / p(x, v)),

where p(x, v) is proportional to exp(-E(x) - v'v / 2). After a rejection the momentum is
usually negated; see `probjax.samplers.momentum` for the rules.

Reference: thesis, chapter "Hamiltonian Monte Carlo"; Horowitz, Phys. Lett. B 268, 247
(1991).
"""

import dataclasses
from dataclasses import KW_ONLY, field
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.checks import check_count, eager_evaluation, holds, is_concrete, is_finite
from probjax.devices import on_host
from probjax.interfaces import Sampler
from probjax.lanes import lazily
from probjax.leapfrog import (
    DIVERGENT,
    Bounds,
    Geometry,
    Integrator,
    Phase,
    check_metric,
    check_step_size,
    hamiltonian,
    kick_drift_kick,
    phase_at,
)
from probjax.potential import Potential, in_one_precision
from probjax.recipe import recipe, static
from probjax.samplers.momentum import Flip, Momentum, standard_flip
from probjax.states import num_sites
from probjax.trees import floating
from probjax.types import Array, Domain, Float, Info, PRNGKeyArray, Scalar, State


class HMCState(NamedTuple):
    """State of an HMC chain."""

    phase: Phase
    """State and momentum, with the energies and gradients at the state."""
    slice: Scalar
    """Persistent number from -1 to 1, which `slice_flip` uses."""
    age: Array
    """Number of steps taken."""

    @property
    def x(self) -> State:
        """Current state."""
        return self.phase.x


@recipe
class Jitter:
    """Random lengths of steps and leaps, which avoid resonances.

    Args:
        step_size: largest relative change of the step size, up or down.
        num_steps: largest number of steps by which a leap is shortened.

    In this example six steps return to where they began, but fewer do not:

    >>> from probjax import Gaussian, sample
    >>> sampler = HMC(1.0, num_steps=6, jitter=Jitter(num_steps=3))
    >>> args = jax.random.key(0), Gaussian.energy, Gaussian(1), jnp.zeros((100, 1))
    >>> round(float(sample(*args, sampler=sampler, num_draws=50).x.std()))
    1
    """

    step_size: float = 0.0
    num_steps: int = static(default=0)

    def __post_init__(self):
        check_count("num_steps", self.num_steps, least=0)
        if is_concrete(self.step_size) and not 0 <= self.step_size < 1:
            raise ValueError(
                f"step_size must be at least 0 and below 1, got {self.step_size}"
            )


@recipe
class HMC(Sampler):
    """Hamiltonian Monte Carlo for continuous states; each step tries one leap.

    Args:
        step_size: length of a leapfrog step, in units of the metric.
        num_steps: number of leapfrog steps in a leap; each costs one gradient.
        momentum: refreshment of the momentum before each leap.
        flip: rule that accepts a leap or negates the momentum: `standard_flip`,
            `reduced_flip` or `slice_flip`.
        metric: displacement of x for a unit of momentum: lengths of shape () or (n,),
            or a matrix of shape (n, n); see `leapfrog`. None for the identity.
        bounds: interval of each coordinate of x. It cannot be combined with a matrix.
        jitter: random changes of the length of leaps; None for a fixed length.
        integrator: `kick_drift_kick` or `drift_kick_drift`.

    >>> from probjax import Gaussian, sample
    >>> target, x = Gaussian(1, scale=2.0), jnp.zeros((100, 1))
    >>> args = jax.random.key(0), Gaussian.energy, target, x
    >>> draws = sample(*args, sampler=HMC(0.5, num_steps=3), num_draws=100)
    >>> round(float(draws.x.std())), bool(draws.info.accept.mean() > 0.9)
    (2, True)
    """

    step_size: float
    _: KW_ONLY
    num_steps: int = static(default=1)
    momentum: Momentum = field(default_factory=Momentum)
    flip: Flip = static(default=standard_flip)
    metric: Float[Array, "..."] | None = None
    bounds: Bounds | None = None
    jitter: Jitter | None = None
    integrator: Integrator = static(default=kick_drift_kick)

    def __post_init__(self):
        check_count("num_steps", self.num_steps)
        check_step_size(self.step_size)
        _check_kind("momentum", self.momentum, Momentum)
        _check_kind("bounds", self.bounds, Bounds | None)
        _check_kind("jitter", self.jitter, Jitter | None)
        if not callable(self.flip):
            raise ValueError(
                f"flip must be a function, got {self.flip!r}; try reduced_flip"
            )
        if self.jitter is not None and self.jitter.num_steps >= self.num_steps:
            raise ValueError(
                f"jitter.num_steps must be below the {self.num_steps} steps of a leap, "
                f"got {self.jitter.num_steps}"
            )
        dense = self.metric is not None and np.ndim(self.metric) == 2
        if self.bounds is not None and dense:
            raise ValueError(
                "bounds require a metric of lengths, got a matrix, with which the "
                "coordinates of x cannot be reflected one by one"
            )

    @property
    def domain(self) -> Domain:
        return "reals"

    @property
    def target_acceptance(self) -> float:
        """Acceptance to adapt to: 0.9 for leaps of a single step, otherwise 0.8.

        With single steps the momentum has to persist over many leaps, and rejections
        negate it.
        """
        return 0.9 if self.num_steps == 1 else 0.8

    @property
    def metrics(self) -> tuple[Literal["lengths", "matrix"], ...]:
        return ("lengths", "matrix") if self.bounds is None else ("lengths",)

    def adapted(self, step_size: Scalar, metric: Array | None = None) -> Self:
        metric = self.metric if metric is None else metric
        return dataclasses.replace(self, step_size=step_size, metric=metric)

    def cached_terms(self, state: HMCState) -> Float[Array, " term"]:
        return state.phase.terms

    def prepare(self, potential: Potential, x: State) -> State:
        for leaf in jax.tree.leaves(x):
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise ValueError(
                    "HMC requires continuous states, got x of "
                    f"{jnp.result_type(leaf)}; try floating numbers, or HeatBath for "
                    "bits"
                )
        x = in_one_precision(potential, jax.tree.map(floating, x))
        check_metric(self.metric, num_sites(x))
        if self.bounds is not None:
            self.bounds.check(num_sites(x))
        if is_concrete((potential, x)):
            with eager_evaluation():
                self._check_starts(potential, x)
        return x

    def _check_starts(self, potential, x):
        energies, gradients = _energies_and_gradients(potential, x)
        if not holds(is_finite, energies):
            energies = on_host(energies)
            worst = int(np.argmax(~np.isfinite(energies)))
            raise ValueError(
                f"chains must start at a finite energy, got {energies[worst]} in "
                f"chain {worst}"
            )
        if not holds(is_finite, gradients):
            raise ValueError(
                "chains must start where the energy has a finite gradient, got NaN or "
                "infinity"
            )
        if self.bounds is None:
            return
        rows, inside = _within(self.bounds, x)
        if not inside.all():
            rows = on_host(rows)
            chain, site = np.argwhere(~on_host(inside))[0]
            raise ValueError(
                f"chains must start within the bounds, got {rows[chain, site]} at "
                f"coordinate {site} of chain {chain}"
            )

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> HMCState:
        momentum_key, slice_key = random.split(key)
        flat, _ = ravel_pytree(x)
        v = random.normal(momentum_key, flat.shape, flat.dtype)
        slice_ = 2 * random.uniform(slice_key, (), flat.dtype) - 1
        return HMCState(phase_at(potential, x, v), slice_, jnp.zeros((), int))

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: HMCState
    ) -> tuple[HMCState, Info]:
        before, leap, chance = self.begin(key, state)
        dtype = before.v.dtype
        after = leap(potential, before)
        log_ratio = _log_ratio(potential, before, after)

        def backward(needed):
            return lazily(_backward_log_ratio, needed, leap, potential, before)

        choice = self.flip(chance, state.slice, log_ratio, backward)
        turned = before._replace(v=jnp.where(choice.flip, -before.v, before.v))
        phase = select(choice.leap, after, turned)
        info = Info(
            accept=choice.leap.astype(dtype),
            chance=jnp.exp(jnp.minimum(log_ratio, 0)),
            flip=choice.flip.astype(dtype),
            diverged=(log_ratio < -DIVERGENT).astype(dtype),
            energy=hamiltonian(potential, phase),
            evaluations=1 + jnp.asarray(choice.looked, dtype),
        )
        return HMCState(phase, choice.slice, state.age + 1), info

    def begin(self, key: PRNGKeyArray, state: HMCState) -> tuple[Phase, "Leap", Scalar]:
        """Draw the random part of a step.

        Returns the phase with its momentum refreshed, the leap to try, and a uniform
        number from 0 to 1 that decides about its acceptance.
        """
        phase, dtype = state.phase, state.phase.v.dtype
        time = self.num_steps * jnp.asarray(self.step_size, dtype)
        v = self.momentum.refresh(key, phase.v, time, state.age)
        chance = random.uniform(key, (), dtype, stream=1)
        return phase._replace(v=v), self.draw_leap(key, dtype), chance

    def draw_leap(self, key: PRNGKeyArray, dtype: Any) -> "Leap":
        """Return the leap of one step, of a random length if there is `jitter`."""
        step_size = jnp.asarray(self.step_size, dtype)
        shorter, change = None, 0.0
        if self.jitter is not None:
            side = 2 * random.uniform(key, (), dtype, stream=2) - 1
            change = self.jitter.step_size * side
        if self.jitter is not None and self.jitter.num_steps:
            most = self.jitter.num_steps
            fraction = random.uniform(key, (), dtype, stream=3)
            shorter = jnp.floor(fraction * (most + 1)).astype(int)
        metric = None if self.metric is None else jnp.asarray(self.metric, dtype)
        space = Geometry(metric, self.bounds)
        size = step_size * (1 + change)
        return Leap(space, size, shorter, self.num_steps, self.integrator)


@recipe
class Leap:
    """Map L of one step: leapfrog steps of one size."""

    space: Geometry
    """Metric and bounds."""
    step_size: Scalar
    shorter: Array | None
    """Number of steps by which the leap is shorter than `num_steps`; None for 0."""
    num_steps: int = static()
    integrator: Integrator = static()

    def __call__(self, potential: Potential, phase: Phase) -> Phase:
        count = self.num_steps
        if self.shorter is not None:
            count = count - self.shorter
        return self.integrator(self.space, potential, phase, self.step_size, count)


def select(flag: Array, first: Phase, second: Phase) -> Phase:
    """Return `first` if `flag` is true, otherwise `second`."""
    return jax.tree.map(lambda *leaves: jnp.where(flag, *leaves), first, second)


def _check_kind(name, value, kind):
    if is_concrete(value) and not isinstance(value, kind):
        raise ValueError(f"{name} must be a {name.capitalize()}, got {value!r}")


def _log_ratio(potential, before, after):
    """Compute log p(after) - log p(before); -inf if the energy is not finite."""
    energy = hamiltonian(potential, after)
    decrease = hamiltonian(potential, before) - energy
    # An energy of -inf is rejected, too: a chain could never leave that state.
    allowed = jnp.isfinite(energy) & ~jnp.isnan(decrease)
    return jnp.where(allowed, decrease, -jnp.inf)


def _backward_log_ratio(leap, potential, phase):
    turned = phase._replace(v=-phase.v)
    return _log_ratio(potential, turned, leap(potential, turned))


@jax.jit
def _within(bounds, x):
    """Return the coordinates of each state, and whether they are within the bounds."""
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(x)
    lower, upper = (
        jnp.broadcast_to(jnp.asarray(bound, rows.dtype), rows.shape[1:])[None]
        for bound in (bounds.lower, bounds.upper)
    )
    return rows, (lower <= rows) & (rows <= upper)


@jax.jit
def _energies_and_gradients(potential, x):
    return jax.vmap(jax.value_and_grad(potential))(x)
