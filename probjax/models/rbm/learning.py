"""What helps a restricted Boltzmann machine to learn: a penalty, and coordinates.

In centred coordinates the energy is that of units less their means,

    E(x, h) = -(x - m)'W(h - n) - b*'(x - m) - c*'(h - n) + constant,
    b* = b + W n,    c* = c + W'm,

where a gradient moves weights and biases by covariances of units and not by their
products. Descent there is the same whichever state of a unit is called on; in plain
parameters it is not.

Reference: Cho, Raiko and Ilin, Neural Computation 25, 805 (2013); Montavon and Mueller,
"Deep Boltzmann machines and the centering trick" (2012); Hinton, "A practical guide to
training restricted Boltzmann machines" (2010).
"""

import jax
import jax.numpy as jnp

from probjax.data.rows import as_data, mean_of_observed, refuse_mask
from probjax.interfaces import Chart
from probjax.models.rbm.machine import Params, hidden_means
from probjax.recipe import recipe
from probjax.trees import floating
from probjax.types import Array, ArrayLike, Data, Float


def weights_only(params: Params) -> Params:
    """Weights for a penalty that spares the biases: 1 on weights, 0 on biases.

    Weight decay is `L2(strength, weights=rbm.weights_only(params))`.

    >>> from probjax import L2
    >>> params = Params(jnp.ones((2, 1)), jnp.ones(2), jnp.ones(1))
    >>> float(L2(0.5, weights=weights_only(params)).value(params))
    1.0
    """
    return jax.tree.map(jnp.zeros_like, params)._replace(
        weight=jnp.ones_like(params.weight)
    )


@recipe
class CentredRBM(Chart):
    """Coordinates of a machine over units less the given means: see the module.

    >>> chart = CentredRBM(jnp.array([0.5, 1.0]), hidden_mean=jnp.array([0.5]))
    >>> params = Params(jnp.array([[2.0], [4.0]]), jnp.zeros(2), jnp.zeros(1))
    >>> coordinates = chart.forward(params)
    >>> coordinates.visible_bias.tolist(), coordinates.hidden_bias.tolist()
    ([1.0, 2.0], [5.0])
    """

    visible_mean: Float[Array, " visible"]
    hidden_mean: Float[Array, " hidden"]

    def forward(self, params: Params) -> Params:
        return self._moved(params, 1)

    def inverse(self, coordinates: Params) -> Params:
        return self._moved(coordinates, -1)

    def _moved(self, params, sign):
        shape = (*self.visible_mean.shape, *self.hidden_mean.shape)
        if params.weight.shape != shape:
            raise ValueError(
                f"the chart is of {shape[0]} visible and {shape[1]} hidden units, "
                f"params of {params.weight.shape[0]} and {params.weight.shape[1]}"
            )
        return Params(
            params.weight,
            params.visible_bias + sign * (params.weight @ self.hidden_mean),
            params.hidden_bias + sign * (self.visible_mean @ params.weight),
        )


def centred(params: Params, data: ArrayLike | Data) -> CentredRBM:
    """The chart of centred units, by their means over `data` as `params` has them.

    >>> params = Params(jnp.zeros((2, 1)), jnp.zeros(2), jnp.zeros(1))
    >>> chart = centred(params, jnp.array([[0, 1], [1, 1]]))
    >>> chart.visible_mean.tolist(), chart.hidden_mean.tolist()
    ([0.5, 1.0], [0.5])
    """
    data = as_data(data)
    refuse_mask(data, "hidden units are of complete rows")
    data = data._replace(x=floating(data.x))
    hidden = jax.vmap(hidden_means, (None, 0))(params, data.x)
    both = mean_of_observed(Data((data.x, hidden), data.weights))
    return CentredRBM(*both)
