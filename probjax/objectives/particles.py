"""Particles that stand for the model, and are carried from round to round of a fit.

A round moves them by a few steps of a sampler at the parameters it begins with, and
keeps their energies there. While the parameters descend, weights

    w = exp(E(x; at the refresh) - E(x; now))

tell how well they still stand for the model; at the next refresh `ess` counts them.
Moves taken for a model that has changed since count for less, which makes an *effective
age*: before each round it shrinks to the share of particles that is still effective,
and then grows by the moves. It should be well above the sampler's autocorrelation time,
or the particles do not follow the model.

Reference: thesis, "Persistent MPF", "Persistent Samples"; Tieleman, ICML 2008.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.checks import check_role
from probjax.data.rows import num_rows, refuse_mask
from probjax.diagnostics.weights import importance_ess
from probjax.potential import check_energy, check_normalisable, potential
from probjax.samplers.adaptation import initial_step_size, move_chains
from probjax.trees import float_dtype
from probjax.types import (
    Array,
    Data,
    Energy,
    Float,
    Params,
    PRNGKeyArray,
    Sampler,
    Scalar,
    State,
)

FEW, RARE = 0.1, 0.3


class PersistentParticles(NamedTuple):
    """Where particles are, and how they do."""

    x: State
    """Their states, leaves `(particle, ...)`."""
    reference: Float[Array, " particle"]
    """Their energies at the parameters they were last moved with."""
    accept: Scalar
    """The share of proposals accepted when they were."""
    ess: Scalar
    """How many of them still stood for the model just before that."""
    age: Scalar
    """Their effective age, in moves."""
    step_size: Scalar | None
    """The sampler's by now; None if it has none, or does not follow."""

    def describe(self) -> str:
        """In words: how they did at the last refresh, and what to do about it."""
        count, ess, accept = len(self.reference), float(self.ess), float(self.accept)
        said = (
            f"{accept:.0%} of proposals accepted, {ess:,.0f} of {count:,} particles "
            f"effective after a round, effective age {float(self.age):.0f} moves"
        )
        if not ess > FEW * count:
            said += "; rounds go too far for them: take fewer steps_per_round"
        if accept < RARE:
            said += "; they hardly move: take a shorter step_size, or let it follow"
        return said


def prepare_rows(
    energy: Energy, sampler: Any, params: Params, data: Data, why: str
) -> Data:
    """`data` that the sampler can move, complete rows only, as `why` says."""
    refuse_mask(data, why)
    check_role("sampler", sampler, Sampler, "HeatBath() or HMC(0.1)")
    check_energy(energy, params, data.x)
    check_normalisable(energy, params)
    return data._replace(x=sampler.prepare(potential(energy, params), data.x))


def refuse_replicas(sampler: Sampler) -> None:
    """Raise if a sampler cannot continue a chain where another round left it."""
    check_role("sampler", sampler, Sampler, "HeatBath() or HMC(0.1)")
    if not sampler.resumable:
        raise ValueError(
            f"{type(sampler).__name__} keeps replicas beside the state, which every "
            "round would begin anew, and so change the model: use the sampler within"
        )


def start_particles(
    key: PRNGKeyArray, objective: Any, params: Params, data: Data
) -> PersistentParticles:
    """Particles of an objective, at rows drawn by their weights.

    If it says no number, and rows have no weights, there is one at each row.
    """
    rows, weights, count = num_rows(data), data.weights, objective.num_particles
    x = data.x
    if count is not None or weights is not None:
        chances = None if weights is None else weights / weights.sum()
        chosen = jax.random.choice(key, rows, (count or rows,), p=chances)
        x = jax.tree.map(lambda leaf: leaf[chosen], x)
    reference = energies(objective.energy, params, x)
    kind = reference.dtype
    return PersistentParticles(
        x=x,
        reference=reference,
        accept=jnp.ones((), kind),
        ess=jnp.asarray(len(reference), kind),
        age=jnp.zeros((), kind),
        step_size=initial_step_size(objective.sampler, objective.adapt, params),
    )


def move_particles(
    key: PRNGKeyArray, objective: Any, params: Params, particles: PersistentParticles
) -> PersistentParticles:
    """Particles moved at `params`, which they go with from then on."""
    now = energies(objective.energy, params, particles.x)
    fall = particles.reference - now
    # A particle without a finite energy stands for nothing.
    ess = importance_ess(jnp.where(jnp.isfinite(fall), fall, -jnp.inf))
    x, accept, step_size = move_chains(
        key,
        objective.energy,
        params,
        particles.x,
        sampler=objective.sampler,
        num_steps=objective.num_moves,
        step_size=particles.step_size,
        target=objective.target,
    )
    return PersistentParticles(
        x=x,
        reference=energies(objective.energy, params, x),
        accept=accept.mean(),
        ess=ess.astype(now.dtype),
        age=(particles.age * ess / len(now) + objective.num_moves).astype(now.dtype),
        step_size=step_size,
    )


def energies(energy: Energy, params: Params, x: State) -> Float[Array, " row"]:
    """The energies of many states."""
    found = jax.vmap(energy, (None, 0))(params, x)
    return found.astype(float_dtype(params))
