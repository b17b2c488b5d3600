"""Centred and scaled coordinates of a kinetic Ising model, for descent.

With the mean m and the scale s of each predictor z, which is an entry of the past or a
covariate,

    theta_i = a_i + sum_k c_ik (z_k - m_k) / s_k

The gradients in a and c are nearly uncorrelated, where those in the fields and the
couplings are not.
"""

from functools import partial

import jax
import jax.numpy as jnp

from probjax.interfaces import Chart
from probjax.models.kinetic_ising.parameters import Inputs, Params, drive
from probjax.recipe import recipe
from probjax.types import Data


@recipe
class CentredKinetic(Chart):
    """Coordinates of a kinetic model over centred and scaled predictors z.

        theta_i = a_i + sum_k c_ik (z_k - m_k) / s_k

    They are stored as `Params` with a in place of the fields and c in place of
    couplings and weights.

    >>> past = Inputs(jnp.array([[0.5, 0.5]])), Inputs(jnp.array([[0.5, 0.5]]))
    >>> chart = CentredKinetic(*past)
    >>> params = Params(jnp.zeros(2), jnp.ones((1, 2, 2)))
    >>> chart.forward(params).field.tolist(), chart.forward(params).coupling[0, 0, 0]
    ([1.0, 1.0], Array(0.5, dtype=float32))
    """

    mean: Inputs
    """m of each predictor."""
    scale: Inputs
    """s of each predictor."""

    def forward(self, params: Params) -> Params:
        return self._scaled(params, params.field + drive(params, self.mean))

    def inverse(self, coordinates: Params) -> Params:
        inverse = CentredKinetic(self.mean, jax.tree.map(jnp.reciprocal, self.scale))
        params = inverse._scaled(coordinates, coordinates.field)
        return Params(
            params.field - drive(params, self.mean), params.coupling, params.weights
        )

    def scales(self, params: Params) -> Params:
        inverse = CentredKinetic(self.mean, jax.tree.map(jnp.reciprocal, self.scale))
        ones = jax.tree.map(jnp.ones_like, params)
        found = inverse._scaled(ones, ones.field)
        return Params(0.0, found.coupling, found.weights)  # pyright: ignore

    def _scaled(self, params, field):
        coupling = params.coupling * self.scale.past[:, None, :]
        weights = params.weights
        if weights is not None and self.scale.covariates is not None:
            weights = weights * self.scale.covariates[None]
        return Params(field, coupling, weights)


def data_chart(params: Params, data: Data) -> CentredKinetic:
    """Return the chart with the means and standard deviations of the predictors.

    A predictor that is constant in the data has the scale 1.

    >>> from probjax.data.spikes import words_from_counts
    >>> from probjax.models.kinetic_ising import init, rows
    >>> found = rows(words_from_counts([[0], [1], [1], [0], [1]]))
    >>> data_chart(init(1), Data(found)).mean.past.tolist()
    [[0.5]]
    """
    inputs = data.x.inputs._replace(rate=None)
    average = partial(jnp.average, axis=0, weights=data.weights)
    mean = jax.tree.map(average, inputs)
    variance = jax.tree.map(lambda z, m: average((z - m[None]) ** 2), inputs, mean)

    def deviation(variance):
        return jnp.sqrt(jnp.where(variance > 0, variance, 1))

    return CentredKinetic(mean, jax.tree.map(deviation, variance))
