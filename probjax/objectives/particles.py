"""Persistent particles: samples of the model that a fit carries from round to round.

At the start of a round, a few steps of a sampler move the particles at the current
parameters, and their energies there are stored. As the parameters change during the
round, the importance weights

    w = exp(E(x; at the refresh) - E(x; now))

measure how well the particles still represent the model; the next refresh computes
their effective sample size, `ess`. Moves at earlier parameters count less, which
defines an *effective age*: at each refresh the age is multiplied by the effective
fraction of the particles, and then increased by the number of moves. If the age is not
well above the autocorrelation time of the sampler, the particles do not follow the
model.

Reference: thesis, "Persistent MPF", "Persistent Samples"; Tieleman, ICML 2008.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.checks import check_interface
from probjax.data.rows import num_rows, refuse_inputs, refuse_mask
from probjax.diagnostics.weights import importance_ess
from probjax.energies import check_energy, check_normalisable
from probjax.interfaces import Sampler
from probjax.potential import potential
from probjax.samplers.adaptation import initial_step_size, move_chains
from probjax.trees import first_row, float_dtype
from probjax.types import (
    Array,
    Data,
    Energy,
    Float,
    Params,
    PRNGKeyArray,
    Scalar,
    State,
    map_states,
    split_inputs,
)

MIN_ESS_FRACTION = 0.1
MIN_ACCEPTANCE = 0.3


class PersistentParticles(NamedTuple):
    """States of persistent particles, and diagnostics of their last refresh."""

    x: State
    """States of the particles, leaves `(particle, ...)`."""
    reference: Float[Array, " particle"]
    """Energies at the parameters of the last refresh."""
    accept: Scalar
    """Fraction of proposals that were accepted in the last refresh."""
    ess: Scalar
    """Effective number of particles just before the last refresh."""
    age: Scalar
    """Effective age, in moves."""
    step_size: Scalar | None
    """Adapted step size; None if the step size is not adapted."""

    def describe(self) -> str:
        """Describe the last refresh, with advice if the particles are unreliable."""
        count, ess, accept = len(self.reference), float(self.ess), float(self.accept)
        text = (
            f"{accept:.0%} of proposals accepted, {ess:,.0f} of {count:,} particles "
            f"effective after a round, effective age {float(self.age):.0f} moves"
        )
        if not ess > MIN_ESS_FRACTION * count:
            text += (
                "; parameters move too far in a round: try a smaller learning rate or "
                "fewer steps_per_round"
            )
        if accept < MIN_ACCEPTANCE:
            text += (
                "; few proposals are accepted: try a smaller step_size or adapt=True"
            )
        return text


def prepare_rows(
    energy: Energy, sampler: Any, params: Params, data: Data, reason: str
) -> Data:
    """Check data, the sampler and the energy; return data that the sampler can move.

    Missing entries raise an error that begins with `reason`.
    """
    refuse_mask(data, reason)
    check_interface("sampler", sampler, Sampler, "HeatBath() or HMC(0.1)")
    check_energy(energy, params, data.x)
    check_normalisable(energy, params)
    model = potential(energy, params, first_row(split_inputs(data.x)[1]))
    return data._replace(x=map_states(partial(sampler.prepare, model), data.x))


def check_resumable(sampler: Sampler) -> None:
    """Raise if `init` of a sampler at the last state does not continue its chain."""
    check_interface("sampler", sampler, Sampler, "HeatBath() or HMC(0.1)")
    if not sampler.resumable:
        raise ValueError(
            f"sampler must be resumable, got {type(sampler).__name__}, whose replicas "
            "would restart in every round and bias the chains; try the sampler that it "
            "wraps"
        )


def start_particles(
    key: PRNGKeyArray, objective: Any, params: Params, data: Data
) -> PersistentParticles:
    """Create the particles of an objective at rows drawn according to the weights.

    If `num_particles` is None and rows have no weights, one particle starts at each
    row.
    """
    # Inputs of some rows only would be a bias, which no number of moves removes.
    refuse_inputs(data.x, "particles require states without inputs")
    rows, weights, count = num_rows(data), data.weights, objective.num_particles
    x = data.x
    if count is not None or weights is not None:
        probs = None if weights is None else weights / weights.sum()
        chosen = jax.random.choice(key, rows, (count or rows,), p=probs)
        x = jax.tree.map(lambda leaf: leaf[chosen], x)
    reference = energies(objective.energy, params, x)
    dtype = reference.dtype
    return PersistentParticles(
        x=x,
        reference=reference,
        accept=jnp.ones((), dtype),
        ess=jnp.asarray(len(reference), dtype),
        age=jnp.zeros((), dtype),
        step_size=initial_step_size(objective.sampler, objective.adapt, params),
    )


def move_particles(
    key: PRNGKeyArray, objective: Any, params: Params, particles: PersistentParticles
) -> PersistentParticles:
    """Move particles at `params`, which become their reference parameters."""
    now = energies(objective.energy, params, particles.x)
    log_weights = particles.reference - now
    # Particles without a finite energy get weight 0.
    finite = jnp.isfinite(log_weights)
    ess = importance_ess(jnp.where(finite, log_weights, -jnp.inf))
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
    """Compute the energy of every row of `x`, in the dtype of `params`."""
    values = jax.vmap(energy, (None, 0))(params, x)
    return values.astype(float_dtype(params))
