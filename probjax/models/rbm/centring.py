"""Centred coordinates of a restricted Boltzmann machine, for faster learning.

With the mean m of the visible and n of the hidden units, the joint energy is

    E(x, h) = -(x - m)'W(h - n) - b*'(x - m) - c*'(h - n) + constant,
    b* = b + W n,    c* = c + W'm.

The gradient in W, b* and c* contains covariances of units, where that in W, b and c
contains mean products. Descent in these coordinates does not depend on which of the two
states of a unit is called 1; descent in the plain parameters does.

Reference: Cho, Raiko and Ilin, Neural Computation 25, 805 (2013); Montavon and Mueller,
"Deep Boltzmann machines and the centering trick" (2012).
"""

from typing import Any

import jax

from probjax.data.rows import as_data, mean_of_observed, refuse_mask
from probjax.interfaces import Chart
from probjax.recipe import recipe
from probjax.trees import floating
from probjax.types import Array, ArrayLike, Data, Float


@recipe
class CentredRBM(Chart):
    """Coordinates (W, b*, c*) of a machine over units minus the given means.

    >>> from probjax import rbm
    >>> chart = CentredRBM(jnp.array([0.5, 1.0]), hidden_mean=jnp.array([0.5]))
    >>> params = rbm.Params(jnp.array([[2.0], [4.0]]), jnp.zeros(2), jnp.zeros(1))
    >>> coordinates = chart.forward(params)
    >>> coordinates.visible_bias.tolist(), coordinates.hidden_bias.tolist()
    ([1.0, 2.0], [5.0])
    """

    visible_mean: Float[Array, " visible"]
    """m, which is subtracted from the visible units."""
    hidden_mean: Float[Array, " hidden"]
    """n, which is subtracted from the hidden units."""

    def forward(self, params: Any) -> Any:
        return self._shifted(params, 1)

    def inverse(self, coordinates: Any) -> Any:
        return self._shifted(coordinates, -1)

    def scales(self, params: Any) -> Any:
        return params._replace(weight=1.0, visible_bias=0.0, hidden_bias=0.0)

    def _shifted(self, params, sign):
        shape = (*self.visible_mean.shape, *self.hidden_mean.shape)
        if params.weight.shape != shape:
            raise ValueError(
                f"params must have the {shape[0]} visible and {shape[1]} hidden units "
                f"of the chart, got weights of shape {params.weight.shape}"
            )
        return params._replace(
            visible_bias=params.visible_bias
            + sign * (params.weight @ self.hidden_mean),
            hidden_bias=params.hidden_bias + sign * (self.visible_mean @ params.weight),
        )


def centred(params: Any, data: ArrayLike | Data) -> CentredRBM:
    """Return the chart with the means of the units over `data`.

    The means of the hidden units are those given each row, under `params`.

    >>> from probjax import rbm
    >>> params = rbm.Params(jnp.zeros((2, 1)), jnp.zeros(2), jnp.zeros(1))
    >>> chart = centred(params, jnp.array([[0, 1], [1, 1]]))
    >>> chart.visible_mean.tolist(), chart.hidden_mean.tolist()
    ([0.5, 1.0], [0.5])
    """
    data = as_data(data)
    refuse_mask(data, "the means of hidden units require complete rows")
    return data_chart(params, data._replace(x=floating(data.x)))


def data_chart(params: Any, data: Data) -> CentredRBM:
    """Return the chart of `centred` for rows that were checked, which may be traced.

    If entries are missing, the means of hidden units are those at the mean row.

    >>> from probjax.models import rbm
    >>> params = rbm.init(jax.random.key(0), 2, 1)
    >>> rows = jnp.array([[0.0, 0.0], [1.0, 0.0]])
    >>> data_chart(params, Data(rows)).visible_mean.tolist()
    [0.5, 0.0]
    """
    if data.mask is not None:
        mean = mean_of_observed(data)
        return CentredRBM(mean, _hidden_means(params, mean))
    hidden = jax.vmap(_hidden_means, (None, 0))(params, data.x)
    return CentredRBM(*mean_of_observed(Data((data.x, hidden), data.weights)))


def _hidden_means(params, x):
    return jax.nn.sigmoid(x @ params.weight + params.hidden_bias)
