"""Parallel tempering: replicas at falling inverse temperatures, which trade places.

A ladder of replicas samples the product of

    p_k(x) ~ exp(-beta_k U(x)),    1 = beta_0 > beta_1 > ... > 0.

The flatter rungs cross barriers that the first does not. After each has taken a step of
its own, states of neighbouring rungs i and j are exchanged with probability

    min(1, exp((beta_i - beta_j) (U(x_i) - U(x_j)))),

which leaves the product unchanged. Even steps try the pairs (0, 1), (2, 3), ..., odd
ones (1, 2), (3, 4), ...: a state that has moved up is next tried further up, so it
crosses the ladder in a time of the order of its length, and not of the square. The
ladder is good if all `swap_rates` are alike and none is small.

Reference: Hukushima and Nemoto, J. Phys. Soc. Jpn. 65, 1604 (1996); Syed et al., JRSS B
84, 321 (2022), for the alternation.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from probjax.checks import check_interface, is_concrete
from probjax.forwarding import ForwardingSampler
from probjax.interfaces import Sampler
from probjax.potential import Potential
from probjax.recipe import recipe
from probjax.types import Array, Float, Info, PRNGKeyArray, State


class TemperedState(NamedTuple):
    """Where the replicas are."""

    x: State
    """The state at beta 1, that of the first replica."""
    replicas: Any
    """The states of the sampler within, leaves `(rung, ...)`."""
    odd: Bool[Array, ""]
    """Whether the next step tries the pairs (1, 2), (3, 4), ... and not the others."""


@recipe
class Tempered(ForwardingSampler):
    """A step of `sampler` on every rung of the ladder `betas`, and swaps between them.

    Args:
        sampler: any, whose states keep nothing that depends on weights.
        betas: inverse temperatures, falling from 1, as `0.7 ** jnp.arange(6)`.

    A heat bath by itself would never leave its start:

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
        """False: the replicas at other temperatures cannot be drawn again."""
        return False

    @property
    def target_acceptance(self) -> None:
        """None: one step size cannot suit all temperatures."""
        return None

    def cached_terms(self, state: TemperedState) -> None:
        return None

    def prepare(self, potential: Potential, x: State) -> State:
        check_interface("sampler", self.sampler, Sampler, "HeatBath()")
        if is_concrete(self.betas):
            _check_ladder(np.asarray(self.betas))
        return self.sampler.prepare(potential, x)

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> TemperedState:
        def start(key, beta):
            return self.sampler.init(key, _at(beta, potential), x)

        betas = self._ladder(potential)
        replicas = jax.vmap(start)(jax.random.split(key, len(betas)), betas)
        return TemperedState(x, replicas, jnp.array(False))

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: TemperedState
    ) -> tuple[TemperedState, Info]:
        def move(key, beta, replica):
            return self.sampler.step(key, _at(beta, potential), replica)

        betas = self._ladder(potential)
        move_key, swap_key = jax.random.split(key)
        keys = jax.random.split(move_key, len(betas))
        replicas, infos = jax.vmap(move)(keys, betas, state.replicas)
        tried = tried_pairs(len(betas), state.odd)
        chances = swap_chances(betas, jax.vmap(potential)(replicas.x))
        chances = jnp.where(tried, chances, 0)
        swaps = jax.random.uniform(swap_key, chances.shape, chances.dtype) < chances
        order = swapped(swaps)
        replicas = jax.tree.map(lambda leaf: leaf[order], replicas)
        x = jax.tree.map(lambda leaf: leaf[0], replicas.x)
        info = Info(infos.accept[0], swap=chances, tried=tried.astype(chances.dtype))
        return TemperedState(x, replicas, ~state.odd), info

    def _ladder(self, potential):
        return jnp.asarray(self.betas, potential.weights.dtype)


def swap_chances(
    betas: Float[Array, " rung"], energies: Float[Array, " rung"]
) -> Float[Array, " pair"]:
    """min(1, exp((beta_i - beta_j) (U_i - U_j))) for every rung i and the next, j."""
    return jnp.exp(jnp.minimum(jnp.diff(betas) * jnp.diff(energies), 0))


def tried_pairs(num_rungs: int, odd: Bool[Array, ""]) -> Bool[Array, " pair"]:
    """Which of the pairs (0, 1), (1, 2), ... an odd or an even step tries to swap."""
    return jnp.arange(num_rungs - 1) % 2 == odd


def swapped(swaps: Bool[Array, " pair"]) -> Int[Array, " rung"]:
    """The rung from which each gets its state. Pairs that swap have no rung in common.

    >>> swapped(jnp.array([True, False, False, True])).tolist()
    [1, 0, 2, 4, 3]
    """
    swaps = swaps.astype(jnp.int32)
    return jnp.arange(len(swaps) + 1) + jnp.pad(swaps, (0, 1)) - jnp.pad(swaps, (1, 0))


def swap_rates(info: Info) -> Float[Array, " pair"]:
    """The mean probability of a swap, over all steps that tried it, of every pair.

    Args:
        info: of one step, or of a run with leading axes of chains and draws. A pair
            that was never tried has no rate: NaN.

    >>> swap, tried = jnp.array([[0.5, 0.0], [0.0, 0.25]]), jnp.eye(2)  # of two steps
    >>> swap_rates(Info(jnp.ones(2), swap=swap, tried=tried)).tolist()
    [0.5, 0.25]
    """
    if info.swap is None or info.tried is None:
        raise ValueError("info must be that of Tempered, got one without swaps")
    axes = tuple(range(info.swap.ndim - 1))
    return info.swap.sum(axes) / info.tried.sum(axes)


def _at(beta, potential):
    weights = beta * potential.weights
    return Potential(potential.energies, potential.args, weights)


def _check_ladder(betas):
    falls = betas.ndim == 1 and len(betas) and betas[0] == 1 and betas[-1] > 0
    # Written so that a NaN, of which no comparison holds, is refused.
    if not (falls and np.all(np.diff(betas) < 0)):
        raise ValueError(f"betas must fall from 1 and stay above 0, got {betas}")
