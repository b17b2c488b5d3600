"""What annealing refuses at the door: what does not go together, in a sentence."""

from collections.abc import Callable
from typing import Any

import jax

from probjax.annealing.path import check_betas
from probjax.potential import check_energy, check_normalisable, potential
from probjax.samplers.following import is_tunable
from probjax.types import (
    Array,
    ArrayLike,
    Base,
    Energy,
    Params,
    PRNGKeyArray,
    Sampler,
    State,
    check_role,
)


def check_schedule(betas: ArrayLike | None, num_steps: int) -> Array | None:
    """`betas`, unless they are no schedule of `num_steps` weights."""
    if betas is None:
        return None
    betas = check_betas(betas)
    if len(betas) != num_steps + 1:
        raise ValueError(
            f"betas must be num_steps + 1 = {num_steps + 1} numbers, got {len(betas)}"
        )
    return betas


def check_target(
    key: PRNGKeyArray, energy: Energy, params: Params, base: Base, sampler: Sampler
) -> None:
    """Refuse models, bases and samplers that do not go together."""
    check_role("base", base, "log_z", "Gaussian(10)")
    check_role("sampler", sampler, "step", "HeatBath() or HMC(0.1)")
    check_normalisable(energy, params)
    few = jax.vmap(base.sample)(jax.random.split(key, 10))
    if getattr(base, "discrete", False):
        few = _discrete(key, base, sampler, few)
    else:
        few = _continuous(base, sampler, few)
    check_energy(energy, params, _first(few))


def _discrete(key: PRNGKeyArray, base: Base, sampler: Sampler, few: State) -> State:
    # A ladder of temperatures moves as the sampler within.
    mover = getattr(sampler, "sampler", sampler)
    model = potential(type(base).energy, base)
    message = (
        f"{type(base).__name__} draws discrete states, which {_named(mover)} cannot "
        "move: use HeatBath, or a continuous base"
    )
    if is_tunable(mover):
        raise ValueError(message)
    few = sampler.prepare(model, few)
    connectivity = getattr(mover, "connectivity", None)
    if connectivity is None:
        return few
    first = _first(few)
    near = connectivity.states(first, connectivity.draw(key, model, first)).x
    try:
        base.prepare(near)
    except ValueError as error:
        raise ValueError(message) from error
    return few


def _continuous(base: Base, sampler: Sampler, few: State) -> State:
    try:
        return sampler.prepare(potential(type(base).energy, base), few)
    except ValueError as error:
        # What has a step size is made for them, and says itself what is wrong.
        if is_tunable(sampler):
            raise
        raise ValueError(
            f"{type(base).__name__} draws continuous states, which {_named(sampler)} "
            "cannot move: use HMC, or a discrete base"
        ) from error


def unending(
    name: str, callback: Callable[[Any], Any] | None
) -> Callable[[Any], None] | None:
    """`callback` for a driver that knows nothing before its end."""
    if callback is None:
        return None

    def call(told):
        if callback(told):
            raise ValueError(
                f"{name} has no estimate before its end: its callback must not return "
                "True"
            )

    return call


def _named(sampler):
    connectivity = getattr(sampler, "connectivity", None)
    over = "" if connectivity is None else f" over {type(connectivity).__name__}"
    return type(sampler).__name__ + over


def _first(rows):
    return jax.tree.map(lambda leaf: leaf[0], rows)
