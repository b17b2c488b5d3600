"""Locally balanced proposals: the changes of a state weighted by their energies.

With gap_na = E(x) - E(x with site n set to letter a), a change has the weight

    g(exp(gap_na)),    g(t) = t g(1 / t),

so that a proposal favours changes to lower energies. For bits the gaps are by default
of first order, (2 x_n - 1) dE/dx_n, which costs one gradient for all sites. Gaps need
not be exact, because the Metropolis-Hastings test

    min(1, exp(E(x) - E(x')) q(x | x') / q(x' | x))

uses the exact energies, and the gaps at x' in the probability q(x | x') of the reverse
proposal. These gaps are cached with the state, so that a proposal costs one evaluation.

An energy of letters has no gradient in them in general, so the gaps of letters are
exact: those of the closed form `site_gaps`, or else from one energy for each letter of
each site.

Reference: Zanella, J. Am. Stat. Assoc. 115, 852 (2020); Grathwohl et al., "Oops I took
a gradient", ICML 2021.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax import generic_gaps
from probjax.checks import eager_evaluation, is_concrete
from probjax.potential import Potential, closed_forms, in_one_precision
from probjax.states import binary, letters
from probjax.types import (
    Array,
    Energy,
    Float,
    Info,
    Params,
    Scalar,
    State,
)

Balance = Callable[[Array], Array]
"""Function of gaps: the logarithms of the weights g(exp(gap))."""
GapRule = Callable[[Energy, Params, State, int], tuple[Scalar, Array]]
"""Function of `(energy, params, x, num_states)`: the energy and its gaps, `(site,)` for
bits and `(site, letter)` for letters."""


def square_root(gaps: Array) -> Array:
    """Logarithm of g(t) = sqrt(t) at t = exp(gap).

    >>> square_root(jnp.array([-2.0, 0.0, 4.0])).tolist()
    [-1.0, 0.0, 2.0]
    """
    return gaps / 2


def barker(gaps: Array) -> Array:
    """Logarithm of g(t) = t / (1 + t) at t = exp(gap); no weight is above 1.

    It limits the effect of gaps that are large and inexact.

    >>> jnp.exp(barker(jnp.array([0.0, 99.0]))).tolist()
    [0.5, 1.0]
    """
    return jax.nn.log_sigmoid(gaps)


def known_gaps(
    energy: Energy, params: Params, x: State, num_states: int
) -> tuple[Scalar, Array]:
    """Compute an energy and its gaps, by a closed form if the energy has one.

    Without it, the gaps of bits are of first order, and those of letters are exact.

    >>> def energy(bias, x):
    ...     return bias @ x
    >>> bias, x = jnp.array([1.0, 3.0]), jnp.array([0.0, 1.0])
    >>> value, gaps = known_gaps(energy, bias, x, 2)
    >>> float(value), gaps.tolist()
    (3.0, [-1.0, 3.0])
    """
    if num_states > 2:
        generic = partial(generic_gaps.site_gaps, energy, num_states=num_states)
        form = closed_forms(energy).get("site_gaps", generic)
        return energy(params, x), form(params, x)
    if "flip_gaps" in closed_forms(energy):
        return energy(params, x), closed_forms(energy)["flip_gaps"](params, x)
    return gradient_gaps(energy, params, x, num_states)


def gradient_gaps(
    energy: Energy, params: Params, x: State, num_states: int
) -> tuple[Scalar, Array]:
    """Compute an energy and its gaps of first order, from one value-and-gradient.

    Use it for bits whose closed form costs much more than a gradient, as that of
    `rbm.energy` does, and for letters that are ordered numbers, such as grey levels.

    >>> def energy(bias, x):
    ...     return jnp.sum(bias * x**2)
    >>> x = jnp.array([1.0, 2.0])
    >>> gradient_gaps(energy, jnp.array([1.0, 3.0]), x, 3)[1].tolist()
    [[2.0, 0.0, -2.0], [24.0, 12.0, 0.0]]
    """
    value, gradient = jax.value_and_grad(energy, argnums=1)(params, x)
    flat, slope = ravel_pytree(x)[0], ravel_pytree(gradient)[0]
    if num_states == 2:
        return value, (2 * flat - 1) * slope
    change = flat[:, None] - jnp.arange(num_states, dtype=flat.dtype)[None]
    return value, slope[:, None] * change


class InformedState(NamedTuple):
    """State of a chain with locally balanced proposals."""

    x: State
    """Current state."""
    terms: Float[Array, " term"]
    """Unweighted energies at `x`."""
    gaps: Float[Array, "term ..."]
    """Unweighted gaps at `x`."""


def state_at(
    gaps: GapRule, num_states: int, potential: Potential, x: State
) -> InformedState:
    """Return the state at `x`; the cost is one evaluation of the energy and its gaps.

    >>> from probjax.potential import potential
    >>> model = potential(lambda bias, x: bias @ x, jnp.array([1.0, 3.0]))
    >>> state = state_at(known_gaps, 2, model, jnp.array([0.0, 1.0]))
    >>> state.terms.tolist(), state.gaps.tolist()
    ([3.0], [[-1.0, 3.0]])
    """

    def rule(energy, params, x):
        return gaps(energy, params, x, num_states)

    return InformedState(x, *potential.terms_and_gaps(rule, x))


def accepted(
    uniform: Scalar,
    potential: Potential,
    before: InformedState,
    after: InformedState,
    log_ratio: Scalar,
) -> tuple[InformedState, Info]:
    """Return the state after a Metropolis-Hastings test, and a report of it.

    Args:
        uniform: random number from 0 to 1.
        log_ratio: log ratio of the proposal probabilities, reverse over forward.
    """
    energy = potential.combine(after.terms)
    log_odds = potential.combine(before.terms) - energy + log_ratio
    # Gaps at a rejected state may be infinite, or not numbers.
    allowed = jnp.isfinite(energy) & ~jnp.isnan(log_odds)
    chance = jnp.exp(jnp.minimum(jnp.where(allowed, log_odds, -jnp.inf), 0))
    accept = uniform < chance
    state = jax.tree.map(lambda a, b: jnp.where(accept, a, b), after, before)
    return state, Info(accept=accept.astype(chance.dtype), chance=chance)


def check_rules(balance: Balance, gaps: GapRule) -> None:
    """Raise if one of the rules of a sampler is not a function."""
    for name, rule, advice in (
        ("balance", balance, "barker"),
        ("gaps", gaps, "gradient_gaps"),
    ):
        if not callable(rule):
            raise ValueError(f"{name} must be a function, got {rule!r}; try {advice}")


def prepared(gaps: GapRule, num_states: int, potential: Potential, x: State) -> State:
    """Check the initial states of bits or letters, and return them as floats."""
    x = binary(x) if num_states == 2 else letters(x, num_states=num_states)
    x = in_one_precision(potential, x)
    if is_concrete((potential, x)):
        with eager_evaluation():
            finite = _are_finite(gaps, num_states, potential, x)
            energies, slopes = map(bool, finite)
        if not energies:
            raise ValueError(
                "chains must start at a finite energy, got NaN or infinity"
            )
        if not slopes:
            raise ValueError(
                "chains must start where the gaps of the energy are finite, got NaN or "
                "infinity; the energy must have a gradient at whole numbers, unlike "
                "sqrt and norm at 0"
            )
    return x


@partial(jax.jit, static_argnums=(0, 1))
def _are_finite(rule, num_states, potential, x):
    """Whether all energies are finite, and all gaps numbers below infinity."""
    state = jax.vmap(partial(state_at, rule, num_states, potential))(x)
    energies = jax.vmap(potential.combine)(state.terms)
    gaps = jax.vmap(potential.combine)(state.gaps)
    # A gap of minus infinity is a change that the model excludes.
    return jnp.isfinite(energies).all(), (gaps < jnp.inf).all()
