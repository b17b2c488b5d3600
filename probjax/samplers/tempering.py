"""Parallel tempering: replicas at decreasing inverse temperatures that swap states.

A ladder of replicas samples the product of

    p_k(x) ~ exp(-beta_k U(x)),    1 = beta_0 > beta_1 > ... > 0.

Replicas at small beta cross barriers that the first replica cannot cross. After each
replica has taken a step, the states of neighbouring rungs i and j are swapped with
probability

    min(1, exp((beta_i - beta_j) (U(x_i) - U(x_j)))),

which leaves the product invariant. Even steps try the pairs (0, 1), (2, 3), ..., odd
steps the pairs (1, 2), (3, 4), .... With this alternation a state crosses the ladder in
a number of steps proportional to its length, not to the square of its length. A ladder
is good if all `swap_rates` are similar and none is small.

Reference: Hukushima and Nemoto, J. Phys. Soc. Jpn. 65, 1604 (1996); Syed et al., JRSS B
84, 321 (2022), for the alternation.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from probjax import random
from probjax.checks import check_interface, holds, is_concrete, is_whole
from probjax.forwarding import ForwardingSampler
from probjax.interfaces import Sampler
from probjax.potential import Potential
from probjax.recipe import recipe
from probjax.types import Array, Float, Info, PRNGKeyArray, State


class TemperedState(NamedTuple):
    """State of a tempered chain."""

    x: State
    """State of the first replica, at beta = 1."""
    replicas: Any
    """States of the sampler that moves each replica, leaves `(rung, ...)`."""
    odd: Bool[Array, ""]
    """Whether the next step tries the pairs (1, 2), (3, 4), ... instead of (0, 1),
    (2, 3), ...."""


@recipe
class Tempered(ForwardingSampler):
    """Parallel tempering: `sampler` on every rung of the ladder `betas`, with swaps.

    Args:
        sampler: any sampler whose states do not depend on the weights of the potential.
        betas: inverse temperatures, decreasing from 1, such as `0.7 ** jnp.arange(6)`;
            for bits and letters the last may be 0, where all states are equally likely.

    In this example `HeatBath()` alone would never leave its starting state:

    >>> from probjax import HeatBath, ising, sample
    >>> params = ising.from_matrix([[20.0, -20.0], [-20.0, 20.0]])
    >>> sampler = Tempered(HeatBath(), 0.5 ** jnp.arange(6))
    >>> args = jax.random.key(0), ising.energy, params, jnp.zeros((20, 2))
    >>> bool(0.3 < sample(*args, sampler=sampler, num_draws=200).x.mean() < 0.7)
    True
    """

    sampler: Sampler
    betas: Float[Array, " rung"]

    @property
    def resumable(self) -> bool:
        """False, because the replicas at other temperatures cannot be drawn again."""
        return False

    @property
    def target_acceptance(self) -> None:
        """None, because one step size cannot suit all temperatures."""
        return None

    def cached_terms(self, state: TemperedState) -> None:
        return None

    def prepare(self, potential: Potential, x: State) -> State:
        check_interface("sampler", self.sampler, Sampler, "HeatBath()")
        if is_concrete(self.betas):
            _check_ladder(np.asarray(self.betas), is_discrete=holds(is_whole, x))
        return self.sampler.prepare(potential, x)

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> TemperedState:
        def start(key, beta):
            return self.sampler.init(key, potential.scaled(beta), x)

        betas = self._ladder(potential)
        replicas = jax.vmap(start)(jax.random.split(key, len(betas)), betas)
        return TemperedState(x, replicas, jnp.array(False))

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: TemperedState
    ) -> tuple[TemperedState, Info]:
        def move(key, beta, replica):
            return self.sampler.step(key, potential.scaled(beta), replica)

        betas = self._ladder(potential)
        move_key, swap_key = jax.random.split(key)
        keys = jax.random.split(move_key, len(betas))
        replicas, infos = jax.vmap(move)(keys, betas, state.replicas)
        tried = tried_pairs(len(betas), state.odd)
        chances = swap_chances(betas, jax.vmap(potential)(replicas.x))
        chances = jnp.where(tried, chances, 0)
        swaps = random.uniform(swap_key, chances.shape, chances.dtype) < chances
        order = swapped_rungs(swaps)
        replicas = jax.tree.map(lambda leaf: leaf[order], replicas)
        x = jax.tree.map(lambda leaf: leaf[0], replicas.x)
        info = Info(infos.accept[0], swap=chances, tried=tried.astype(chances.dtype))
        return TemperedState(x, replicas, ~state.odd), info

    def _ladder(self, potential):
        return jnp.asarray(self.betas, potential.weights.dtype)


def swap_chances(
    betas: Float[Array, " rung"], energies: Float[Array, " rung"]
) -> Float[Array, " pair"]:
    """Swap probability min(1, exp((beta_i - beta_j) (U_i - U_j))) with j = i + 1."""
    return jnp.exp(jnp.minimum(jnp.diff(betas) * jnp.diff(energies), 0))


def tried_pairs(num_rungs: int, odd: Bool[Array, ""]) -> Bool[Array, " pair"]:
    """Whether an odd or an even step tries each of the pairs (0, 1), (1, 2), ...."""
    return (jnp.arange(num_rungs - 1) % 2 == 1) == odd


def swapped_rungs(swaps: Bool[Array, " pair"]) -> Int[Array, " rung"]:
    """Index of the rung from which each rung receives its state.

    Pairs that swap must not have a rung in common.

    >>> swapped_rungs(jnp.array([True, False, False, True])).tolist()
    [1, 0, 2, 4, 3]
    """
    swaps = swaps.astype(jnp.int32)
    return jnp.arange(len(swaps) + 1) + jnp.pad(swaps, (0, 1)) - jnp.pad(swaps, (1, 0))


def swap_rates(info: Info) -> Float[Array, " pair"]:
    """Mean swap probability of every pair, over the steps in which it was tried.

    A pair that was never tried has a rate of NaN.

    Args:
        info: `Info` of one step, or of a run with leading axes of chains and draws.

    >>> swap, tried = jnp.array([[0.5, 0.0], [0.0, 0.25]]), jnp.eye(2)  # two steps
    >>> swap_rates(Info(jnp.ones(2), swap=swap, tried=tried)).tolist()
    [0.5, 0.25]
    """
    if info.swap is None or info.tried is None:
        raise ValueError(
            "info must come from the sampler Tempered, got one without swaps"
        )
    axes = tuple(range(info.swap.ndim - 1))
    return info.swap.sum(axes) / info.tried.sum(axes)


def _check_ladder(betas, is_discrete):
    has_ends = betas.ndim == 1 and len(betas) and betas[0] == 1
    has_ends = has_ends and (betas[-1] > 0 or (is_discrete and betas[-1] == 0))
    # Comparisons with NaN are false, so this form rejects it.
    if not (has_ends and np.all(np.diff(betas) < 0)):
        raise ValueError(
            "betas must decrease from 1 and stay above 0 (of bits and letters the last "
            f"may be 0), got {betas}; try 0.7 ** jnp.arange(6)"
        )
