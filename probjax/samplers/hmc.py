"""Hamiltonian Monte Carlo with momentum that persists.

A step refreshes the momentum in part, leaps L along the dynamics, and accepts where it
led or does not; then the momentum may have to be negated (F), so that p stays fixed:

    v <- sqrt(c) v + sqrt(1 - c) r,    c = kept^(time of the path),  r ~ N(0, I)
    (x, v) -> L(x, v)   with probability P_leap = min(1, p(L(x, v)) / p(x, v))
           -> F(x, v)   with probability P_flip
           -> (x, v)    otherwise.

Flips send a chain back to where it came from. The standard P_flip = 1 - P_leap is more
than is needed; the least is

    P_flip = max(0, min(1, p(LF(x, v)) / p(x, v)) - P_leap),

which asks for one more leap, backwards, where the first was not accepted. `slice_flip`
leaves P_flip as it is, and makes rejections rarer for long stretches instead.

Reference: thesis, chapter "Hamiltonian Monte Carlo"; Horowitz, Phys. Lett. B 268, 247
(1991); Neal, "Non-reversibly updating a uniform [0,1] value for Metropolis
accept/reject decisions", arXiv:2001.11950 (2020).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY, field
from functools import partial
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.checks import check_count, eager_evaluation, holds, is_concrete, is_finite
from probjax.devices import on_host
from probjax.interfaces import Sampler
from probjax.lanes import if_any, lazily
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
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.states import num_sites
from probjax.trees import floating
from probjax.types import Array, Domain, Float, Info, PRNGKeyArray, Scalar, State

SLICE_DRIFT = 0.05


class HMCState(NamedTuple):
    """Where a chain is."""

    phase: Phase
    """The state, its momentum, and the energies and gradients there."""
    slice: Scalar
    """A number from -1 to 1 that persists, for `slice_flip`."""
    age: Array
    """Steps taken."""

    @property
    def x(self) -> State:
        """The current state."""
        return self.phase.x


class Choice(NamedTuple):
    """Where a step ends: at the leap, with its momentum negated, or where it was."""

    leap: Array
    flip: Array
    slice: Scalar
    looked: Array | bool = False
    """Whether the leap back was evaluated."""


Flip = Callable[[Scalar, Scalar, Scalar, Callable[[Array], Scalar]], Choice]
"""`flip(chance, slice, log_ratio, backward)`: chance is uniform from 0 to 1, log_ratio
is log p(L(x, v)) / p(x, v), and `backward(needed)` log p(LF(x, v)) / p(x, v), evaluated
where it is needed."""


def standard_flip(
    chance: Scalar,
    slice_: Scalar,
    log_ratio: Scalar,
    backward: Callable[[Array], Scalar],
) -> Choice:
    """Negate the momentum whenever the leap is not accepted.

    >>> choice = standard_flip(0.7, 0.0, jnp.log(0.5), backward=None)
    >>> bool(choice.leap), bool(choice.flip)
    (False, True)
    """
    leap = chance < jnp.exp(jnp.minimum(log_ratio, 0))
    return Choice(leap, ~leap, slice_)


def reduced_flip(
    chance: Scalar,
    slice_: Scalar,
    log_ratio: Scalar,
    backward: Callable[[Array], Scalar],
) -> Choice:
    """Negate the momentum only as often as must be.

    One uniform number decides both.

    >>> def backward(needed):
    ...     return jnp.log(0.6)
    >>> choice = reduced_flip(0.7, 0.0, jnp.log(0.5), backward)
    >>> bool(choice.leap), bool(choice.flip)
    (False, False)
    """
    there = jnp.exp(jnp.minimum(log_ratio, 0))
    leap = chance < there
    back = jnp.exp(jnp.minimum(backward(~leap), 0))
    flip = ~leap & (chance < jnp.maximum(back, there))
    return Choice(leap, flip, slice_, looked=~leap)


def slice_flip(
    chance: Scalar,
    slice_: Scalar,
    log_ratio: Scalar,
    backward: Callable[[Array], Scalar],
) -> Choice:
    """Accept by a uniform number that persists, and drifts a little in every step.

    Acceptances and rejections then come in runs, and momentum lives longer.

    >>> choice = slice_flip(0.7, 0.1, jnp.log(0.5), backward=None)
    >>> bool(choice.leap), round(float(choice.slice), 2)  # 0.1 + 0.07, of a half
    (True, 0.34)
    """
    moved = (slice_ + 2 * SLICE_DRIFT * chance + 1) % 2 - 1
    leap = jnp.abs(moved) < jnp.exp(jnp.minimum(log_ratio, 0))
    # It is uniform below p: where p is larger it is a smaller share of it.
    kept = jnp.where(leap, moved * jnp.exp(-jnp.where(leap, log_ratio, 0)), moved)
    return Choice(leap, ~leap, kept)


@recipe
class Momentum:
    """How momentum is refreshed.

    Args:
        kept: the share of its variance that is kept per unit of simulated time; with 0
            it is drawn anew.
        every: steps between refreshes, which then count for all of them.

    With all of it kept, a chain stays on one path, and at one energy:

    >>> from probjax import Gaussian, sample
    >>> target, x = Gaussian(1, scale=2.0), jnp.zeros((100, 1))
    >>> sampler = HMC(0.1, num_steps=3, momentum=Momentum(1.0))
    >>> args = jax.random.key(0), Gaussian.energy, target, x
    >>> energies = sample(*args, sampler=sampler, num_draws=100).info.energy
    >>> bool((jnp.ptp(energies, axis=1) < 0.01 * energies.mean(1)).all())
    True
    """

    kept: float = 0.5
    every: int = static(default=1)

    def __post_init__(self):
        check_count("every", self.every)
        if is_concrete(self.kept) and not 0 <= self.kept <= 1:
            raise ValueError(f"kept must be from 0 to 1, got {self.kept}")


@recipe
class Jitter:
    """Random lengths of steps and paths, which break resonances.

    Args:
        step_size: steps are longer or shorter by up to this share.
        num_steps: paths are shorter by up to so many steps.

    Six of these steps lead round to where they began, fewer do not:

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
            raise ValueError(f"step_size must be below 1, got {self.step_size}")


@recipe
class HMC(Sampler):
    """Leaps of `num_steps` leapfrog steps of length `step_size`.

    Args:
        step_size: in units of the metric.
        num_steps: leapfrog steps of a leap, one evaluation of the gradient each.
        momentum: how much of it persists from leap to leap.
        flip: when it is negated: `standard_flip`, `reduced_flip` or `slice_flip`.
        metric: what a unit of momentum moves x by: lengths, or a matrix; see
            `leapfrog`.
        bounds: where x is confined. Not with a matrix.
        jitter: of the leap's length, if any.
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
                f"flip must be a function, as reduced_flip, got {self.flip!r}"
            )
        if self.jitter is not None and self.jitter.num_steps >= self.num_steps:
            raise ValueError(
                f"jitter.num_steps must be below the {self.num_steps} steps of a path, "
                f"got {self.jitter.num_steps}"
            )
        dense = self.metric is not None and np.ndim(self.metric) == 2
        if self.bounds is not None and dense:
            raise ValueError(
                "bounds need a metric of lengths: in a rotated one the coordinates of "
                "x do not reflect on their own"
            )

    @property
    def domain(self) -> Domain:
        return "reals"

    @property
    def target_acceptance(self) -> float:
        """0.9 for single steps, which turn back if they are rejected; else 0.8."""
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
                    f"HMC moves continuous states, got x of {jnp.result_type(leaf)}: "
                    "give floating ones, or for bits use HeatBath"
                )
        x = _in_one_precision(potential, jax.tree.map(floating, x))
        check_metric(self.metric, num_sites(x))
        if self.bounds is not None:
            self.bounds.check(num_sites(x))
        if is_concrete((potential, x)):
            with eager_evaluation():
                self._check_starts(potential, x)
        return x

    def _check_starts(self, potential, x):
        energies, gradients = _starts(potential, x)
        if not holds(is_finite, energies):
            energies = on_host(energies)
            worst = int(np.argmax(~np.isfinite(energies)))
            raise ValueError(
                f"chains must start at a finite energy, got {energies[worst]} in "
                f"chain {worst}"
            )
        if not holds(is_finite, gradients):
            raise ValueError("chains must start where the energy has a finite gradient")
        if self.bounds is None:
            return
        rows, inside = _within(self.bounds, x)
        if not inside.all():
            rows = on_host(rows)
            chain, place = np.argwhere(~on_host(inside))[0]
            raise ValueError(
                f"chains must start within the bounds, got {rows[chain, place]} at "
                f"coordinate {place} of chain {chain}"
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
        kind = before.v.dtype
        after = leap(potential, before)
        log_ratio = _log_ratio(potential, before, after)

        def backward(needed):
            return lazily(_log_ratio_back, needed, leap, potential, before)

        choice = self.flip(chance, state.slice, log_ratio, backward)
        turned = before._replace(v=jnp.where(choice.flip, -before.v, before.v))
        phase = select(choice.leap, after, turned)
        info = Info(
            accept=choice.leap.astype(kind),
            chance=jnp.exp(jnp.minimum(log_ratio, 0)),
            flip=choice.flip.astype(kind),
            diverged=(log_ratio < -DIVERGENT).astype(kind),
            energy=hamiltonian(potential, phase),
            evaluations=1 + jnp.asarray(choice.looked, kind),
        )
        return HMCState(phase, choice.slice, state.age + 1), info

    def begin(self, key: PRNGKeyArray, state: HMCState) -> tuple[Phase, "Leap", Scalar]:
        """The phase with momentum refreshed, the leap to take, and a uniform number."""
        kind = state.phase.v.dtype
        time = self.num_steps * jnp.asarray(self.step_size, kind)
        before = self._refreshed(key, state, time)
        chance = random.uniform(key, (), kind, stream=1)
        return before, self._leap(key, kind), chance

    def _refreshed(self, key, state, time):
        v, every = state.phase.v, self.momentum.every
        kept = jnp.asarray(self.momentum.kept, v.dtype) ** (every * time)
        noise = partial(random.normal, shape=v.shape, dtype=v.dtype)

        def mixed(fresh):
            return jnp.sqrt(kept) * v + jnp.sqrt(1 - kept) * fresh

        if every == 1:
            return state.phase._replace(v=mixed(noise(key)))
        due = state.age % every == 0
        # Chains that began together draw together, and nothing in between.
        fresh = if_any(noise, due, key)
        return state.phase._replace(v=jnp.where(due, mixed(fresh), v))

    def _leap(self, key, kind):
        step_size = jnp.asarray(self.step_size, kind)
        shorter, share = None, 0.0
        if self.jitter is not None:
            sides = 2 * random.uniform(key, (), kind, stream=2) - 1
            share = self.jitter.step_size * sides
        if self.jitter is not None and self.jitter.num_steps:
            most = self.jitter.num_steps
            share_of_steps = random.uniform(key, (), kind, stream=3)
            shorter = jnp.floor(share_of_steps * (most + 1)).astype(int)
        metric = None if self.metric is None else jnp.asarray(self.metric, kind)
        space = Geometry(metric, self.bounds)
        size = step_size * (1 + share)
        return Leap(space, size, shorter, self.num_steps, self.integrator)


@recipe
class Leap:
    """The map L of one step."""

    space: Geometry
    step_size: Scalar
    shorter: Array | None
    num_steps: int = static()
    integrator: Integrator = static()

    def __call__(self, potential: Potential, phase: Phase) -> Phase:
        count = self.num_steps
        if self.shorter is not None:
            count = count - self.shorter
        return self.integrator(self.space, potential, phase, self.step_size, count)


def select(flag: Array, first: Phase, second: Phase) -> Phase:
    """`first` where `flag` is true, else `second`."""
    return jax.tree.map(lambda *leaves: jnp.where(flag, *leaves), first, second)


def _check_kind(name, value, kind):
    if is_concrete(value) and not isinstance(value, kind):
        raise ValueError(f"{name} must be a {name.capitalize()}, got {value!r}")


def _in_one_precision(potential, x):
    """`x` in the widest of its own floats and the parameters', as its energies are."""
    kind = jnp.result_type(potential.weights, *jax.tree.leaves(x))
    return jax.tree.map(lambda leaf: leaf.astype(kind), x)


def _log_ratio(potential, before, after):
    there = hamiltonian(potential, after)
    fall = hamiltonian(potential, before) - there
    # What has no finite energy is no place to go, however it came about.
    return jnp.where(jnp.isfinite(there) & ~jnp.isnan(fall), fall, -jnp.inf)


def _log_ratio_back(leap, potential, phase):
    turned = phase._replace(v=-phase.v)
    return _log_ratio(potential, turned, leap(potential, turned))


@jax.jit
def _within(bounds, x):
    """All coordinates of each state, and whether they are between the bounds."""
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(x)
    lower, upper = (
        jnp.broadcast_to(jnp.asarray(bound, rows.dtype), rows.shape[1:])[None]
        for bound in (bounds.lower, bounds.upper)
    )
    return rows, (lower <= rows) & (rows <= upper)


@jax.jit
def _starts(potential, x):
    return jax.vmap(jax.value_and_grad(potential))(x)
