"""Momentum of Hamiltonian Monte Carlo: partial refreshment and negation.

Before a leap L along the dynamics the momentum v is mixed with noise. After it the
momentum may have to be negated (F), so that p stays invariant:

    v <- sqrt(c) v + sqrt(1 - c) r,    c = kept^(time of the leap),  r ~ N(0, I)
    (x, v) -> L(x, v)   with probability P_leap = min(1, p(L(x, v)) / p(x, v))
           -> F(x, v)   with probability P_flip
           -> (x, v)    otherwise.

A flip sends a chain back along the path it came. The standard P_flip = 1 - P_leap is
larger than necessary; the smallest possible value is

    P_flip = max(0, min(1, p(LF(x, v)) / p(x, v)) - P_leap),

which requires one more leap, backwards, after each rejection. `slice_flip` keeps the
standard P_flip. It clusters rejections instead, so that the stretches between them are
longer.

Reference: thesis, chapter "Hamiltonian Monte Carlo"; Horowitz, Phys. Lett. B 268, 247
(1991); Neal, "Non-reversibly updating a uniform [0,1] value for Metropolis
accept/reject decisions", arXiv:2001.11950 (2020).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from probjax import random
from probjax.checks import check_count, is_concrete
from probjax.lanes import if_any
from probjax.recipe import recipe, static
from probjax.types import Array, Float, PRNGKeyArray, Scalar

SLICE_DRIFT = 0.05


@recipe
class Momentum:
    """Partial refreshment of the momentum.

    Args:
        kept: fraction of the momentum's variance that is kept per unit of simulated
            time, from 0 (a new momentum for every leap) to 1 (no refreshment).
        every: number of steps between refreshments. Each refreshment then accounts for
            the simulated time of all these steps.

    With `kept=1.0` a chain stays on one trajectory, at nearly constant energy:

    >>> import jax
    >>> from probjax import HMC, Gaussian, sample
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

    def refresh(
        self, key: PRNGKeyArray, v: Float[Array, " n"], time: Scalar, age: Array
    ) -> Float[Array, " n"]:
        """Mix the momentum `v` with noise, if a refreshment is due.

        Args:
            time: simulated time of one leap.
            age: number of steps that the chain has taken.
        """
        kept = jnp.asarray(self.kept, v.dtype) ** (self.every * time)
        noise = partial(random.normal, shape=v.shape, dtype=v.dtype)

        def mixed(fresh):
            return jnp.sqrt(kept) * v + jnp.sqrt(1 - kept) * fresh

        if self.every == 1:
            return mixed(noise(key))
        due = age % self.every == 0
        # Chains that started together are due in the same steps. In the steps between,
        # no noise is computed.
        fresh = if_any(noise, due, key)
        return jnp.where(due, mixed(fresh), v)


class Choice(NamedTuple):
    """Outcome of a step: the end of the leap, the start with negated momentum, or the
    start.
    """

    leap: Array
    """Whether the leap is accepted."""
    flip: Array
    """Whether the momentum is negated."""
    slice: Scalar
    """Persistent number of `slice_flip` after the step."""
    looked: Array | bool = False
    """Whether the leap backwards was evaluated."""


Flip = Callable[[Scalar, Scalar, Scalar, Callable[[Array], Scalar]], Choice]
"""`flip(chance, slice, log_ratio, backward)`: the rule by which a leap is accepted or
the momentum negated. `chance` is a uniform random number from 0 to 1, `slice` is
`HMCState.slice` and `log_ratio` is log p(L(x, v)) / p(x, v). `backward(needed)` returns
log p(LF(x, v)) / p(x, v), which it evaluates only where `needed` is true."""


def standard_flip(
    chance: Scalar,
    slice_: Scalar,
    log_ratio: Scalar,
    backward: Callable[[Array], Scalar],
) -> Choice:
    """Negate the momentum whenever the leap is rejected.

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
    """Negate the momentum with the smallest probability that keeps p invariant.

    One uniform number determines both the acceptance and the flip.

    >>> def backward(needed):
    ...     return jnp.log(0.6)
    >>> choice = reduced_flip(0.7, 0.0, jnp.log(0.5), backward)
    >>> bool(choice.leap), bool(choice.flip)
    (False, False)
    """
    forward_chance = jnp.exp(jnp.minimum(log_ratio, 0))
    leap = chance < forward_chance
    backward_chance = jnp.exp(jnp.minimum(backward(~leap), 0))
    flip = ~leap & (chance < jnp.maximum(backward_chance, forward_chance))
    return Choice(leap, flip, slice_, looked=~leap)


def slice_flip(
    chance: Scalar,
    slice_: Scalar,
    log_ratio: Scalar,
    backward: Callable[[Array], Scalar],
) -> Choice:
    """Accept with a uniform number that persists and drifts a little in every step.

    Acceptances and rejections then occur in runs, and the momentum persists for longer.

    >>> choice = slice_flip(0.7, 0.1, jnp.log(0.5), backward=None)
    >>> bool(choice.leap), round(float(choice.slice), 2)  # (0.1 + 0.07) / 0.5
    (True, 0.34)
    """
    moved = (slice_ + 2 * SLICE_DRIFT * chance + 1) % 2 - 1
    leap = jnp.abs(moved) < jnp.exp(jnp.minimum(log_ratio, 0))
    # A leap does not change the level slice * p, so that the slice is divided by the
    # ratio of the densities.
    kept = jnp.where(leap, moved * jnp.exp(-jnp.where(leap, log_ratio, 0)), moved)
    return Choice(leap, ~leap, kept)
