"""Parameters and inputs of kinetic Ising models, and their form over spins."""

from typing import NamedTuple

import jax.numpy as jnp

from probjax.checks import check_count
from probjax.recipe import recipe
from probjax.trees import floating
from probjax.types import Array, ArrayLike, Float, Scalar


class Inputs(NamedTuple):
    """Inputs of one row, or of rows with a leading axis; `rows` constructs them.

    >>> from probjax.models.kinetic_ising import Params, log_odds
    >>> inputs = Inputs(past=jnp.array([[1.0, 0.0]]))
    >>> params = Params(jnp.array([0.0, 1.0]), jnp.array([[[0.0, 0.0], [2.0, 0.0]]]))
    >>> log_odds(params, inputs).tolist()
    [0.0, 3.0]
    """

    past: Float[Array, "lag unit"]
    """Words before, the latest first."""
    covariates: Float[Array, " covariate"] | None = None
    """Other numbers on which the fields depend; None for none."""
    rate: Scalar | Float[Array, " unit"] | None = None
    """Probability of an update, of all units or of each; None for 1."""


@recipe
class Params:
    """Fields, couplings and weights of covariates.

    >>> params = init(3, num_lags=2, num_covariates=4)
    >>> params.coupling.shape, params.weights.shape
    ((2, 3, 3), (3, 4))
    """

    field: Float[Array, " unit"]
    """h_i: log odds of each unit after silence."""
    coupling: Float[Array, "lag unit unit"]
    """J_lij: effect on unit i of unit j, l + 1 bins before."""
    weights: Float[Array, "unit covariate"] | None = None
    """b_ic: effect of each covariate; None without covariates."""


def init(size: int, *, num_lags: int = 1, num_covariates: int = 0) -> Params:
    """Return fields, couplings and weights of 0.

    >>> init(2).coupling.tolist()
    [[[0.0, 0.0], [0.0, 0.0]]]
    """
    check_count("size", size)
    check_count("num_lags", num_lags)
    check_count("num_covariates", num_covariates, least=0)
    weights = jnp.zeros((size, num_covariates)) if num_covariates else None
    return Params(jnp.zeros(size), jnp.zeros((num_lags, size, size)), weights)


def drive(params: Params, inputs: Inputs) -> Float[Array, " unit"]:
    """Compute the part of theta that depends on the inputs."""
    lags, units, sources = params.coupling.shape
    table = params.coupling.transpose(0, 2, 1).reshape(lags * sources, units)
    found = inputs.past.ravel() @ table
    if params.weights is not None and inputs.covariates is not None:
        found += inputs.covariates @ params.weights.T
    return found


def from_spins(
    field: Float[ArrayLike, " unit"], coupling: Float[ArrayLike, "lag unit unit"]
) -> Params:
    """Return the model of spins s = 2x - 1 with p(s_i) ~ exp(s_i (h_i + sum J_ij s_j)).

    >>> params = from_spins(jnp.zeros(1), jnp.ones((1, 1, 1)))
    >>> params.field.tolist(), params.coupling.tolist()
    ([-2.0], [[[4.0]]])
    """
    field, coupling = floating(field), floating(coupling)
    return Params(2 * field - 2 * coupling.sum((0, 2)), 4 * coupling)


def to_spins(params: Params) -> tuple[Array, Array]:
    """Return the fields and couplings of the model over spins, as in `from_spins`.

    Weights of covariates over spins are half of `params.weights`.

    >>> field, coupling = to_spins(from_spins(jnp.ones(2), jnp.ones((1, 2, 2))))
    >>> field.tolist(), coupling[0, 0].tolist()
    ([1.0, 1.0], [1.0, 1.0])
    """
    coupling = params.coupling / 4
    return params.field / 2 + coupling.sum((0, 2)), coupling
