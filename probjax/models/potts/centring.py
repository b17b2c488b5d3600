"""Centred coordinates of a Potts model, for well-conditioned descent.

With the one-hot vector o_i of the letter at site i, and frequencies m_i of its letters,

    E = -sum_i g_i'(o_i - m_i) - sum_(i<j) (o_i - m_i)'J_ij (o_j - m_j) + constant,
    g_i = h_i + sum_(j != i) J_ij m_j.

Descent in (g, J) is well conditioned where descent in (h, J) is not.
"""

import jax.numpy as jnp

from probjax.data.rows import mean_of_observed
from probjax.interfaces import Chart
from probjax.models.pairs import at_both_sites, sums_of_sites
from probjax.models.potts.parameters import Params, one_hot_rows
from probjax.recipe import recipe
from probjax.types import Array, Data, Float, Scalar


@recipe
class CentredPotts(Chart):
    """Coordinates of a Potts model over one-hot vectors o minus letter frequencies m.

        E = -sum_i g_i (o_i - m_i) - sum_(i<j) (o_i - m_i)'J_ij (o_j - m_j) + constant,
        g_i = h_i + sum_j J_ij m_j.

    The gradient in the couplings is a covariance instead of a joint frequency, so that
    couplings and fields are nearly uncorrelated.

    >>> chart = CentredPotts(jnp.full((2, 2), 0.5))
    >>> params = Params(jnp.zeros((2, 2)), jnp.array([[[4.0, 0.0], [0.0, 0.0]]]))
    >>> chart.forward(params).field.tolist()
    [[2.0, 0.0], [2.0, 0.0]]
    """

    frequency: Float[Array, "site letter"]
    """m: frequency of each letter at each site."""
    least: Scalar | float = 1e-6
    """Smallest variance of a letter that is assumed for `curvature`."""

    def forward(self, params: Params) -> Params:
        return self._shifted(params, 1)

    def inverse(self, coordinates: Params) -> Params:
        return self._shifted(coordinates, -1)

    def scales(self, params: Params) -> Params:
        return Params(0.0, 1.0, params.edges)  # pyright: ignore

    def curvature(self, params: Params) -> Params:
        """Return that of the pseudolikelihood of independent sites."""
        variance = self.frequency * (1 - self.frequency)
        variance = jnp.maximum(variance, self.least)
        first, second = at_both_sites(variance, params.edges)
        both = 2 * first[:, :, None] * second[:, None, :]
        return Params(variance, both, params.edges)

    def _shifted(self, params, sign):
        first, second = at_both_sites(self.frequency, params.edges)
        # Sums and not products, because the matrices are small.
        at_first = jnp.sum(params.coupling * second[:, None, :], axis=2)
        at_second = jnp.sum(params.coupling * first[:, :, None], axis=1)
        shift = sums_of_sites(at_first, at_second, len(params.field), params.edges)
        return Params(params.field + sign * shift, params.coupling, params.edges)


def data_chart(params: Params, data: Data) -> CentredPotts:
    """Return the chart with the frequencies of letters in the data.

    A letter that is always, or never, at a site has the variance of one that differs in
    one row.

    >>> from probjax import potts
    >>> params = potts.init(jax.random.key(0), 2, 2)
    >>> data_chart(params, Data(jnp.array([[0, 1], [0, 0]]))).frequency.tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    hot, mask = one_hot_rows(params, data)
    frequency = mean_of_observed(Data(hot, data.weights, mask))
    total = len(hot) if data.weights is None else data.weights.sum()
    return CentredPotts(frequency, 1 / jnp.asarray(total, frequency.dtype))
