"""Noise-contrastive estimation: classify data against noise of a known density.

With n draws y from a base q for every row x, and the log ratio of model to noise

    r(x) = -E(x) - log Z - log q(x) - log n,

the loss is that of logistic regression between data and noise,

    mean over rows of softplus(-r(x)) + sum_y softplus(r(y)).

The model is not constrained to be normalised, so log Z is a parameter like the others;
its estimate is the log partition function. The estimator is the more efficient the
closer the noise is to the data and the more noise there is; with infinitely many draws
it is maximum likelihood.

Reference: Gutmann and Hyvarinen, JMLR 13, 307 (2012).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.checks import check_count, check_interface, holds
from probjax.data.rows import num_rows, refuse_inputs, refuse_mask
from probjax.energies import check_energy
from probjax.interfaces import Base, Chart, Objective
from probjax.potential import (
    couplings,
    default_chart,
    unbounded,
    unbounded_entries,
)
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
    """Parameters of the energy."""
    log_z: Scalar
    """Log partition function, fitted like the other parameters."""


@recipe
class NormalisedChart(Chart):
    """Chart of a `Normalised`: `chart` for its parameters, and log Z as it is.

    >>> from probjax.fitting.charts import Affine
    >>> doubled = NormalisedChart(Affine(scale=2.0))
    >>> doubled.inverse(Normalised(jnp.ones(1), jnp.ones(()))).params.tolist()
    [2.0]
    """

    chart: Chart

    def forward(self, params: Normalised) -> Normalised:
        return Normalised(self.chart.forward(params.params), params.log_z)

    def inverse(self, coordinates: Normalised) -> Normalised:
        return Normalised(self.chart.inverse(coordinates.params), coordinates.log_z)


@recipe
class NoiseContrast(Objective):
    """The data against `num_noise` draws from `base` for every row.

    The parameters of a fit are a `Normalised`; start at `start(params)`. To leave log Z
    out of a penalty, pass `weights=Normalised(weights, 0.0)` to the penalty. The noise,
    which is the context of a row, is redrawn at each refresh and fixed within a round,
    so that the loss can be minimised.

    Args:
        energy: `energy(params, x)` of one state.
        base: distribution of the noise.
        num_noise: number of draws for each row.

    If the model equals the noise, each term is that of a fair coin:

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
        """Return `params` with the log Z of the base, the start of a fit."""
        log_z = jnp.asarray(self.base.log_z, float_dtype(params))
        return Normalised(params, log_z)

    def prepare(self, params: Normalised, data: Data) -> Data:
        refuse_mask(data, "noise contrast needs complete rows")
        refuse_inputs(data.x, "log Z is one number only without inputs")
        check_interface("base", self.base, Base, "Gaussian(10)")
        if data.weights is not None and not holds(_is_share, data.weights):
            raise ValueError(
                "weights must be at most 1, got larger ones, which would use one draw "
                "of noise for several rows; try to repeat rows instead"
            )
        if not isinstance(params, Normalised):
            raise ValueError(
                f"params must be a Normalised, got a {type(params).__name__}, because "
                "log Z is fitted too; try objective.start(params)"
            )
        data = data._replace(x=self.base.prepare(data.x))
        check_energy(self.energy, params.params, data.x)
        return data

    def unbounded(self, params: Normalised, data: Data) -> str:
        return unbounded(self.energy, params.params, data)

    def unbounded_entries(self, params: Normalised, data: Data) -> Normalised | None:
        found = unbounded_entries(self.energy, params.params, data)
        return None if found is None else Normalised(found, jnp.zeros((), bool))

    def chart(self, params: Normalised, data: Data) -> Chart | None:
        chart = default_chart(self.energy, params.params, data)
        return None if chart is None else NormalisedChart(chart)

    def couplings(self, params: Normalised) -> Normalised | None:
        weights = couplings(self.energy, params.params)
        if weights is None:
            return None
        return Normalised(weights, 0.0)  # pyright: ignore[reportArgumentType]

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
