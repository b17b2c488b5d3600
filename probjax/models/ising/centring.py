"""Centred and scaled coordinates of an Ising model, for well-conditioned descent.

With the mean m and the scale s of each unit and y = (x - m) / s,

    E(x) = a'y + sum_(i<j) c_ij y_i y_j + constant,
    c_ij = 2 J_ij s_i s_j,    a_i = s_i (J_ii + 2 sum_(j != i) J_ij m_j).

The statistics y_i and y_i y_j have about unit variance and are nearly uncorrelated, so
descent in (a, c) is well conditioned where descent in J is not.
"""

import jax.numpy as jnp

from probjax.data.rows import as_data, mean_of_observed
from probjax.interfaces import Chart
from probjax.models.ising.parameters import Params, coupled_sums
from probjax.models.pairs import pair_products
from probjax.recipe import recipe
from probjax.states import binary
from probjax.types import Array, ArrayLike, Data, Float


@recipe
class CentredIsing(Chart):
    """Coordinates (a, c) of an Ising model over y = (x - mean) / scale.

    They are stored as `Params` with a in place of the biases and c in place of the
    couplings; the module's docstring has the equations.

    >>> from probjax import ising
    >>> chart = CentredIsing(mean=jnp.array([0.5, 0.5]), scale=jnp.array([0.5, 0.5]))
    >>> coordinates = chart.forward(ising.from_matrix([[0, 2], [2, 0]]))
    >>> coordinates.bias.tolist(), coordinates.coupling.tolist()
    ([1.0, 1.0], [1.0])
    >>> ising.coupling_matrix(chart.inverse(coordinates)).tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """

    mean: Float[Array, " unit"]
    """Value that is subtracted from each unit."""
    scale: Float[Array, " unit"]
    """Positive value by which each unit is then divided."""

    def forward(self, params: Params) -> Params:
        if params.bias.shape != self.mean.shape:
            raise ValueError(
                f"params must have the {len(self.mean)} units of the chart, got "
                f"{len(params.bias)}"
            )
        coupling = params.coupling * self._pair_scales(params)
        bias = self.scale * (params.bias + coupled_sums(params, self.mean))
        return Params(bias, coupling, params.edges)

    def inverse(self, coordinates: Params) -> Params:
        coupling = coordinates.coupling / self._pair_scales(coordinates)
        params = Params(coordinates.bias / self.scale, coupling, coordinates.edges)
        bias = params.bias - coupled_sums(params, self.mean)
        return Params(bias, coupling, params.edges)

    def scales(self, params: Params) -> Params:
        return Params(0.0, 1 / self._pair_scales(params), params.edges)  # pyright: ignore

    def _pair_scales(self, params):
        """2 s_i s_j for each pair."""
        return 2 * pair_products(self.scale, params.edges)


def centred(data: ArrayLike | Data) -> CentredIsing:
    """Return the chart with the (weighted) mean and standard deviation of each unit.

    A unit that is constant in the data has the scale of one that differs in one row.

    >>> chart = centred(jnp.array([[0, 1], [1, 1], [0, 1], [1, 1]]))
    >>> chart.mean.tolist(), chart.scale.tolist()
    ([0.5, 1.0], [0.5, 0.5])
    """
    data = as_data(data)
    x = binary(data.x)
    mean = mean_of_observed(data._replace(x=x))
    return centred_at(mean, len(x) if data.weights is None else data.weights.sum())


def centred_at(mean: Float[Array, " n"], weight: ArrayLike) -> CentredIsing:
    """Return the chart of `centred` from means that are already known.

    Args:
        mean: mean of each unit; `blocks.moments` computes it for out-of-core data.
        weight: total weight of the rows; their number if they have no weights.

    >>> centred_at(jnp.array([0.5, 1.0]), 16).scale.tolist()
    [0.5, 0.25]
    """
    return CentredIsing(mean, jnp.sqrt(jnp.maximum(mean * (1 - mean), 1 / weight)))


def data_chart(params: Params, data: Data) -> CentredIsing:
    """Return the chart of `centred` for rows that were checked, which may be traced.

    Rows whose weights are probabilities count as one each, so that scales are those of
    the data.

    >>> rows = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    >>> data_chart(None, Data(rows)).mean.tolist()
    [0.5, 0.25]
    """
    weight = len(data.x)
    if data.weights is not None:
        weight = jnp.maximum(data.weights.sum(), weight)
    return centred_at(mean_of_observed(data), weight)
