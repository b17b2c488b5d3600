"""Ways from a distribution that is known to one that is not, and schedules along them.

Geometric:  E_b = (1 - b) E_0 + b E_1,              b from 0 to 1;
Straight:   E_b = E(theta_b, x),  theta_b = theta_0 + b (theta_1 - theta_0).

The first asks of a sampler only what it knows of the two energies at its state, so what
it keeps of them holds all the way. The second moves the parameters, as is done for RBMs
from one without couplings, whose units then can be drawn layer by layer all along.

A schedule is the numbers b themselves. Equal steps suit targets with light tails. Where
a tail of the target is heavier than the base's, states reach it only as b comes near 1,
and steps have to shrink with 1 - b.

Reference: thesis, "Annealed Importance Sampling"; Salakhutdinov and Murray, ICML 2008.
"""

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count, is_concrete
from probjax.interfaces import Base, Sampler
from probjax.potential import Potential, potential
from probjax.recipe import recipe, static
from probjax.trees import as_array
from probjax.types import Array, ArrayLike, Energy, Float, Params, Scalar, State

NEAREST = 1e-6


@recipe
class Ends:
    """Both ends of a path: a base and a target.

    >>> from probjax import Gaussian
    >>> def energy(scale, x):
    ...     return jnp.sum((x / scale) ** 2) / 2
    >>> ends = Ends(energy, 2.0, Gaussian(1))
    >>> x = jnp.array([2.0])
    >>> float(ends.base.energy(x)), float(ends.energy(ends.params, x))
    (2.0, 0.5)
    """

    energy: Energy = static()
    params: Params
    base: Base


class Path(ABC):
    """A family of models from a base, at 0, to a target, at 1.

    >>> @recipe
    ... class Quadratic(Path):  # the target's share grows with the square of beta
    ...     def potential(self, ends, beta):
    ...         return Geometric().potential(ends, beta**2)
    >>> from probjax import Bernoulli, HeatBath, ais, ising
    >>> args = jax.random.key(0), ising.energy, ising.from_matrix([[1.0]]), Bernoulli(1)
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> found = ais(*args, path=Quadratic(), **options)
    >>> bool(abs(found.log_z - jnp.log(1 + jnp.exp(-1))) < 0.2)
    True
    """

    @abstractmethod
    def potential(self, ends: Ends, beta: Scalar) -> Potential:
        """Return the model at `beta`."""

    @property
    def keeps_terms(self) -> bool:
        """Whether what a sampler caches of its state holds at every `beta`."""
        return False

    def offset(self, ends: Ends, x: State) -> Scalar:
        """Compute base.energy(x) - E_0(x); 0 if the path begins at the base."""
        return ends.base.energy(x) - self.potential(ends, jnp.zeros(()))(x)

    def increment(
        self, ends: Ends, sampler: Sampler, state: Any, here: Scalar, there: Scalar
    ) -> Scalar:
        """Compute E_here(x) - E_there(x) at a state of the sampler."""
        before, after = (self.potential(ends, beta) for beta in (here, there))
        return before(state.x) - after(state.x)


@recipe
class Geometric(Path):
    """Both energies weighted, one rising as the other falls.

    >>> from probjax import Gaussian
    >>> def energy(scale, x):
    ...     return jnp.sum((x / scale) ** 2) / 2
    >>> ends = Ends(energy, 2.0, Gaussian(1))
    >>> half_way = Geometric().potential(ends, jnp.asarray(0.5))
    >>> float(half_way(jnp.array([2.0])))  # (2 + 1/2) / 2
    1.25
    """

    @property
    def keeps_terms(self) -> bool:
        return True

    def potential(self, ends: Ends, beta: Scalar) -> Potential:
        energies = (type(ends.base).energy, ends.energy)
        return Potential(energies, (ends.base, ends.params), _weights(beta))

    def offset(self, ends: Ends, x: State) -> Scalar:
        return jnp.zeros(())

    def increment(
        self, ends: Ends, sampler: Sampler, state: Any, here: Scalar, there: Scalar
    ) -> Scalar:
        terms = sampler.cached_terms(state)
        if terms is None:
            terms = self.potential(ends, here).terms(state.x)
        # Weights as the models have them, rounding and all, so that none is lost.
        change = _weights(here) - _weights(there)
        return change[0] * terms[0] + change[1] * terms[1]


@recipe
class Straight(Path):
    """One energy whose parameters move in a straight line.

    The base should be the normalised exp(-energy(start, x)). The weights correct for
    another base, at a price.

    Args:
        start: the parameters where the line begins.

    >>> from probjax import Bernoulli, ising
    >>> start, end = (ising.from_matrix(J * jnp.ones((2, 2))) for J in (0.0, 4.0))
    >>> ends = Ends(ising.energy, end, Bernoulli(2))
    >>> half_way = Straight(start).potential(ends, jnp.asarray(0.5))
    >>> ising.coupling_matrix(half_way.args[0]).tolist()
    [[2.0, 2.0], [2.0, 2.0]]
    """

    start: Params

    def potential(self, ends: Ends, beta: Scalar) -> Potential:
        if jax.tree.structure(self.start) != jax.tree.structure(ends.params):
            raise ValueError(
                "start must be params of the model's own form, got "
                f"{jax.tree.structure(self.start)}"
            )

        def between(first, last):
            return first + beta * (last - first)

        return potential(ends.energy, jax.tree.map(between, self.start, ends.params))

    def offset(self, ends: Ends, x: State) -> Scalar:
        return ends.base.energy(x) - ends.energy(self.start, x)


def linear(num_steps: int) -> Float[Array, " beta"]:
    """Equal steps.

    >>> linear(4).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    check_count("num_steps", num_steps)
    return as_array(np.linspace(0, 1, num_steps + 1))


def sigmoid(num_steps: int, *, slope: float = 4.0) -> Float[Array, " beta"]:
    """Short steps at both ends: 1 / (1 + exp(-slope t)) for t from -1 to 1, rescaled.

    >>> [round(float(beta), 2) for beta in sigmoid(4)]
    [0.0, 0.1, 0.5, 0.9, 1.0]
    """
    check_count("num_steps", num_steps)
    raw = np.tanh(slope / 2 * np.linspace(-1, 1, num_steps + 1))
    return as_array((raw / raw[-1] + 1) / 2)


def towards_one(num_steps: int) -> Float[Array, " beta"]:
    """Half of the steps equal, half of them shrinking with 1 - b, down to 1e-6.

    For targets with heavier tails than their base.

    >>> [round(float(beta), 3) for beta in towards_one(4)]
    [0.0, 0.5, 0.999, 1.0, 1.0]
    """
    check_count("num_steps", num_steps)
    return as_array(spaced_towards_one(num_steps))


def spaced_towards_one(num_steps: int) -> np.ndarray:
    """Return the numbers of `towards_one`, computed by NumPy."""
    log_spaced = 1 - np.geomspace(1, NEAREST, num_steps - num_steps // 2 + 1)
    equal = np.linspace(0, 1, num_steps // 2 + 1)[1:]
    betas = np.sort(np.concatenate([log_spaced, equal]))
    betas[-1] = 1
    return betas


def check_schedule(betas: ArrayLike | None, num_steps: int) -> Array | None:
    """Return `betas` as an array; raise if they are not a schedule of that length."""
    if betas is None:
        return None
    betas = check_betas(betas)
    if len(betas) != num_steps + 1:
        raise ValueError(
            f"betas must be num_steps + 1 = {num_steps + 1} numbers, got {len(betas)}"
        )
    return betas


def check_betas(betas: ArrayLike) -> Float[Array, " beta"]:
    """`betas` as an array, unless they do not rise from 0 to 1."""
    betas = as_array(betas, jnp.result_type(float))
    if betas.ndim != 1 or len(betas) < 2:
        raise ValueError(f"betas must be two numbers or more, got shape {betas.shape}")
    if not is_concrete(betas):
        return betas
    for place, end in ((0, 0), (-1, 1)):
        if betas[place] != end:
            raise ValueError(
                f"betas must rise from 0 to 1, got betas[{place}]={betas[place]}"
            )
    falls = np.flatnonzero(~(np.diff(np.asarray(betas)) >= 0))
    if len(falls):
        k = int(falls[0])
        raise ValueError(
            f"betas must rise from 0 to 1, got betas[{k}]={betas[k]} before "
            f"betas[{k + 1}]={betas[k + 1]}"
        )
    return betas


def _weights(beta):
    return jnp.stack([1 - beta, beta])
