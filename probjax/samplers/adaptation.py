"""Adaptation of the step size of chains whose model is being learned.

The parameters of a model change from round to round of a fit, and with them the best
step size. After every step of all chains, the logarithm of the step size is changed by

    GAIN (mean acceptance - target) / (target (1 - target)),    at most GAIN,

until the mean acceptance is near the target. A sampler whose step size depends on its
chains no longer leaves the model exactly invariant. With many chains this bias is
negligible, because each contributes little to the mean; with only a few, do not adapt.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.checks import is_concrete
from probjax.devices import sharded_vmap
from probjax.interfaces import Sampler
from probjax.potential import potential
from probjax.trees import float_dtype
from probjax.types import (
    Array,
    Energy,
    Float,
    Params,
    PRNGKeyArray,
    Scalar,
    State,
    check_info,
    split_inputs,
    with_inputs,
)

GAIN = 0.2


class Moved(NamedTuple):
    """Result of `move_chains`."""

    x: State
    """States of the chains, leaves `(chain, ...)`."""
    accept: Float[Array, " chain"]
    """Fraction of each chain's proposals that were accepted."""
    step_size: Scalar | None
    """Adapted step size; None if it was not adapted."""


def move_chains(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    x: State,
    *,
    sampler: Sampler,
    num_steps: int,
    axes: Any = None,
    step_size: Scalar | None = None,
    target: Scalar | float | None = None,
    beta: Scalar | None = None,
) -> Moved:
    """Take `num_steps` steps with many chains that start at `x`.

    It compiles nothing by itself, and is meant to be called in compiled code.

    Args:
        x: starting states, leaves `(chain, ...)`.
        axes: axes of `params` along which each chain has its own parameters, as
            `in_axes` of `vmap`; None if all chains have the same.
        step_size: initial step size, to be adapted; None to adapt nothing.
        target: mean acceptance to adapt to; None for the sampler's own.
        beta: inverse temperature, by which the energy is multiplied; None for 1.
    """
    keys = jax.random.split(key, len(jax.tree.leaves(x)[0]))
    target = sampler.target_acceptance if target is None else target

    x, inputs = split_inputs(x)

    def model_of(params, inputs):
        model = potential(energy, params, inputs)
        return model if beta is None else model.scaled(beta)

    def start(key, params, inputs, x):
        # Steps are numbered from 0, so no step has this number.
        first_key = random.fold_in(key, 2**31 - 1)
        return sampler.init(first_key, model_of(params, inputs), x)

    def step(number, carry):
        states, accept, log_step = carry
        adapted = sampler if log_step is None else sampler.adapted(jnp.exp(log_step))

        def one(key, params, inputs, state):
            step_key = random.fold_in(key, number)
            state, info = adapted.step(step_key, model_of(params, inputs), state)
            return state, check_info(info)

        states, info = sharded_vmap(one, (0, axes, 0, 0))(keys, params, inputs, states)
        if log_step is not None and target is not None:
            acceptance = info.acceptance.mean()
            log_step = adapt_log_step(
                log_step, acceptance, target, sampler.max_step_size
            )
        return states, accept + info.accept / num_steps, log_step

    states = sharded_vmap(start, (0, axes, 0, 0))(keys, params, inputs, x)
    log_step = None if step_size is None else jnp.log(step_size)
    accept = jnp.zeros(len(keys), float_dtype(params))
    carry = (states, accept, log_step)
    states, accept, log_step = jax.lax.fori_loop(0, num_steps, step, carry)
    final_step_size = None if log_step is None else jnp.exp(log_step)
    moved = Moved(with_inputs(states.x, inputs), accept, final_step_size)
    return jax.lax.stop_gradient(moved)


def initial_step_size(sampler: Sampler, adapt: bool, params: Params) -> Scalar | None:
    """Return the step size at which adaptation begins; None to adapt nothing.

    Args:
        adapt: whether the user requested adaptation.
        params: parameters of the energy, which determine the dtype.
    """
    if not adapt or sampler.target_acceptance is None:
        return None
    return jnp.asarray(sampler.step_size, float_dtype(params))


def adapt_log_step(
    log_step: Scalar,
    acceptance: Scalar,
    target: Scalar | float,
    max_step_size: float | None,
) -> Scalar:
    """Change the logarithm of a step size a little, to approach the target."""
    excess = (acceptance - target) / (target * (1 - target))
    change = GAIN * jnp.clip(excess, -1, 1)
    return limited(log_step + change.astype(log_step.dtype), max_step_size)


def limited(log_step: Scalar, max_step_size: float | None) -> Scalar:
    """Return the logarithm of a step size, or of the largest one if that is smaller."""
    if max_step_size is None:
        return log_step
    return jnp.minimum(log_step, math.log(max_step_size))


def check_acceptance(target: Any) -> None:
    """Raise an error if `target` is neither None nor between 0 and 1."""
    if target is not None and is_concrete(target) and not 0 < target < 1:
        raise ValueError(f"target must be between 0 and 1, got {target}")
