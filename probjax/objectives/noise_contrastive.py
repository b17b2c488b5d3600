"""Noise-contrastive estimation: tell the data from noise of a known density.

With n draws y of a base q for every row x, and the log ratio of model to noise

    r(x) = -E(x) - log Z - log q(x) - log n,

the loss is that of the logistic regression that tells them apart,

    mean over rows of softplus(-r(x)) + sum_y softplus(r(y)).

Nothing makes exp(-E) / Z sum to one but the data, so log Z is a parameter like the
others, and comes out as the partition function. The nearer the noise is to the data,
and the more of it, the less is lost against maximum likelihood, which is the limit of
endless noise.

Reference: Gutmann and Hyvarinen, JMLR 13, 307 (2012).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.checks import check_count, check_interface, holds
from probjax.data.rows import num_rows, refuse_mask
from probjax.interfaces import Base, Objective
from probjax.potential import check_energy
from probjax.recipe import recipe, static
from probjax.trees import float_dtype
from probjax.types import Context, Data, Energy, Params, PRNGKeyArray, Scalar, State


class Normalised(NamedTuple):
    """Parameters of an energy, with the logarithm of its partition function.

    >>> from probjax import Gaussian
    >>> start = NoiseContrast(Gaussian.energy, Gaussian(2)).start(jnp.zeros(2))
    >>> start.params.tolist(), round(float(start.log_z), 4)  # log 2 pi
    ([0.0, 0.0], 1.8379)
    """

    params: Params
    """What the energy takes."""
    log_z: Scalar
    """Learned with them."""


@recipe
class NoiseContrast(Objective):
    """The data against `num_noise` draws of `base` for every row.

    It is fitted in `Normalised` parameters, begun with `start(params)`; a penalty that
    spares log Z has `weights=Normalised(weights, 0.0)`. The noise, a
    row's context, is drawn anew at every refresh and fixed in between, so that the
    loss is a function to be minimised.

    Where model and noise are alike, nothing tells them apart:

    >>> from probjax import Gaussian, loss
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> objective = NoiseContrast(energy, Gaussian(2))
    >>> args = jax.random.key(0), objective, objective.start(1.0), jnp.ones((3, 2))
    >>> round(float(loss(*args)), 4)  # 2 log 2
    1.3863
    """

    energy: Energy = static()
    base: Base
    num_noise: int = static(default=1)

    def __post_init__(self):
        check_count("num_noise", self.num_noise)

    def start(self, params: Params) -> Normalised:
        """`params` with the log Z of the base, to begin a fit at."""
        log_z = jnp.asarray(self.base.log_z, float_dtype(params))
        return Normalised(params, log_z)

    def prepare(self, params: Normalised, data: Data) -> Data:
        refuse_mask(data, "noise contrast compares densities of complete rows")
        check_interface("base", self.base, Base, "Gaussian(10)")
        if data.weights is not None and not holds(_is_share, data.weights):
            raise ValueError(
                "weights above 1 would count one draw of noise for many rows: give "
                "rows as often as they were seen, without weights"
            )
        if not isinstance(params, Normalised):
            raise ValueError(
                "noise contrast learns log Z too: start from objective.start(params)"
            )
        data = data._replace(x=self.base.prepare(data.x))
        check_energy(self.energy, params.params, data.x)
        return data

    def init(self, key: PRNGKeyArray, params: Normalised, data: Data) -> Context:
        return self.refresh(key, params, data, Context((), ()))

    def refresh(
        self, key: PRNGKeyArray, params: Normalised, data: Data, context: Context
    ) -> Context:
        keys = jax.random.split(key, (num_rows(data), self.num_noise))
        noise = jax.vmap(jax.vmap(self.base.sample))(keys)
        like = jax.tree.map(lambda y, x: y.astype(x.dtype), noise, data.x)
        return Context(like, ())

    def row(self, params: Normalised, x: State, context: State) -> Scalar:
        def log_ratio(x):
            density = -self.energy(params.params, x) - params.log_z
            noise = -self.base.energy(x) - self.base.log_z + jnp.log(self.num_noise)
            return density - noise.astype(density.dtype)

        noise = jax.vmap(log_ratio)(context)
        return jax.nn.softplus(-log_ratio(x)) + jnp.sum(jax.nn.softplus(noise))


def _is_share(weight):
    return weight <= 1
