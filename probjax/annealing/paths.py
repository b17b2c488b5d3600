"""Paths of distributions from a base, at b = 0, to a target, at b = 1.

Geometric:  E_b = (1 - b) E_0 + b E_1;
Straight:   E_b = E(theta_b, x),  theta_b = theta_0 + b (theta_1 - theta_0).

On the geometric path E_b depends on the state only through the two energies, so the
energies and gradients that a sampler caches remain valid for every b. The straight path
changes the parameters. It suits RBMs, starting from one without couplings: every model
on the path is an RBM, so block Gibbs sampling applies to all of them.

Reference: thesis, "Annealed Importance Sampling"; Salakhutdinov and Murray, ICML 2008.
"""

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp

from probjax.interfaces import Base, Sampler
from probjax.potential import Potential, potential
from probjax.recipe import recipe, static
from probjax.types import Energy, Params, Scalar, State


@recipe
class Ends:
    """Ends of a path: a base, and a target given by its energy and parameters.

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
    """A family of models from a base, at beta = 0, to a target, at beta = 1.

    >>> @recipe
    ... class Quadratic(Path):  # the target's share grows with the square of beta
    ...     def potential(self, ends, beta):
    ...         return Geometric().potential(ends, beta**2)
    >>> from probjax import Bernoulli, HeatBath, ais, ising
    >>> args = jax.random.key(0), ising.energy, ising.from_matrix([[1.0]]), Bernoulli(1)
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> annealed = ais(*args, path=Quadratic(), **options)
    >>> bool(abs(annealed.log_z - jnp.log(1 + jnp.exp(-1))) < 0.2)
    True
    """

    @abstractmethod
    def potential(self, ends: Ends, beta: Scalar) -> Potential:
        """Return the model at `beta`."""

    @property
    def keeps_terms(self) -> bool:
        """Whether the terms that a sampler caches for a state are valid at any beta."""
        return False

    def offset(self, ends: Ends, x: State) -> Scalar:
        """Compute base.energy(x) - E_0(x): 0 if the path starts at the base."""
        return ends.base.energy(x) - self.potential(ends, jnp.zeros(()))(x)

    def increment(
        self, ends: Ends, sampler: Sampler, state: Any, here: Scalar, there: Scalar
    ) -> Scalar:
        """Compute E_here(x) - E_there(x) at a state of the sampler."""
        before, after = (self.potential(ends, beta) for beta in (here, there))
        return before(state.x) - after(state.x)


@recipe
class Geometric(Path):
    """A weighted sum of both energies, (1 - beta) E_0 + beta E_1.

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
        # The difference of the models' rounded weights, so that the changes add up to
        # exactly 1 over a run.
        change = _weights(here) - _weights(there)
        return change[0] * terms[0] + change[1] * terms[1]


@recipe
class Straight(Path):
    """One energy, whose parameters move in a straight line.

    The base should be the distribution proportional to exp(-energy(start, x)). For any
    other base the weights include a correction, which increases their variance.

    Args:
        start: parameters at the start of the line, of the same form as `params`.

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
                "start must have the form of params, "
                f"{jax.tree.structure(ends.params)}, got "
                f"{jax.tree.structure(self.start)}"
            )

        def between(first, last):
            return first + beta * (last - first)

        return potential(ends.energy, jax.tree.map(between, self.start, ends.params))

    def offset(self, ends: Ends, x: State) -> Scalar:
        return ends.base.energy(x) - ends.energy(self.start, x)


def _weights(beta):
    return jnp.stack([1 - beta, beta])
