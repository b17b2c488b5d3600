"""Entropy of a model, divergence between two models, and log Z from one frequent state.

They need draws of the models and, for the entropy, log Z:

    entropy              H(p) = <E_p>_p + log Z_p
    divergence           KL(p, q) = <E_q - E_p>_p + log Z_q / Z_p
    Jensen-Shannon       log 2 - <softplus(E_p - E_q + d)>_p / 2 - ..., at most log 2
    a frequent state     log Z = -E(s) - log P(s)

The ratio d of the partition functions of two models comes from their draws, by
Bennett's acceptance ratio, which is MBAR of two models; neither log Z has to be known.
All values are in nats.

The last line is a check of log Z that is independent of annealing if silence, or any
other state, is common enough to be counted. Errors are those of a jackknife over
batches of chains.

Reference: Bennett, J. Comput. Phys. 22, 245 (1976); Tkacik, Marre, Amodei, Schneidman,
Bialek and Berry, PLoS Comput. Biol. 10, e1003408 (2014), for log Z from silence.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.annealing.bounds import Bracket
from probjax.annealing.estimate import Annealed
from probjax.annealing.mbar import mbar
from probjax.annealing.measured import (
    Measured,
    chain_batches,
    jackknife,
    states_of,
    with_error,
)
from probjax.energies import check_energy
from probjax.runs.driver import driver
from probjax.samplers.draws import Draws
from probjax.trees import as_array
from probjax.types import Energy, Params, Scalar, State

LEAST_OVERLAP = 0.01


class Divergence(NamedTuple):
    """Divergences between two models p and q; `divergence` returns them.

    >>> found = Divergence(*[Measured(0.7, 0.1, 0.5, 0.9)] * 4)
    >>> "hardly overlap" in found.describe()
    True
    """

    forward: Measured
    """KL(p, q), the mean of log p - log q over p, in nats."""
    backward: Measured
    """KL(q, p), in nats."""
    jensen_shannon: Measured
    """Jensen-Shannon divergence, in nats; 0 for equal models, log 2 at most."""
    log_z_ratio: Measured
    """log Z_q - log Z_p."""

    def describe(self) -> str:
        """Describe the divergences, and whether the models overlap."""
        lines = [
            f"KL(p, q): {self.forward.describe()} nats",
            f"KL(q, p): {self.backward.describe()} nats",
            f"Jensen-Shannon: {self.jensen_shannon.describe()} nats, at most log 2",
        ]
        if np.log(2) - self.jensen_shannon.value < LEAST_OVERLAP:
            lines.append(
                "the models hardly overlap, so that the ratio of their partition "
                "functions, and both KL, are not known; try log_likelihood"
            )
        return "\n".join(lines)


@driver
def model_entropy(
    energy: Energy,
    params: Params,
    draws: Draws | State,
    log_z: Annealed | Bracket | Scalar | float,
) -> Measured:
    """Compute the entropy of a model, <E> + log Z, with its error, in nats.

    Args:
        draws: result of `sample` for this model, or states `(chain, draw, ...)`.
        log_z: result of `ais` or `sandwich`, or a known number. With `sandwich` the
            interval includes that of log Z.

    >>> from probjax import HeatBath, ising, sample
    >>> flat, x = ising.from_matrix(jnp.zeros((2, 2))), jnp.zeros((5, 2))
    >>> options = dict(sampler=HeatBath(), num_draws=10)
    >>> draws = sample(jax.random.key(0), ising.energy, flat, x, **options)
    >>> round(model_entropy(ising.energy, flat, draws, np.log(4)).value, 4)  # 2 log 2
    1.3863
    """
    energies = _energies(energy, params, draws)
    batch = chain_batches(len(energies))

    def mean(included):
        return np.array([energies[included[batch]].mean()])

    values, errors = jackknife(mean, batch[-1] + 1)
    if not isinstance(log_z, Annealed | Bracket):
        return with_error(values[0] + float(log_z), errors[0])
    known, error = float(log_z.log_z), float(log_z.stderr)
    found = with_error(values[0] + known, np.hypot(errors[0], error))
    if not isinstance(log_z, Bracket):
        return found
    # The bounds of log Z may be farther away than two standard errors.
    down, up = known - float(log_z.lower), float(log_z.upper) - known
    lower = found.value - np.hypot(down, 2 * errors[0])
    upper = found.value + np.hypot(up, 2 * errors[0])
    return found._replace(lower=float(lower), upper=float(upper))


@driver
def divergence(
    energy: Energy,
    params: Params,
    draws: Draws | State,
    other_energy: Energy,
    other_params: Params,
    other_draws: Draws | State,
) -> Divergence:
    """Compute divergences between two models of any size from draws of both.

    Args:
        draws: result of `sample` for the first model p, or states `(chain, draw, ...)`.
        other_draws: the same for the second model q.

    >>> from probjax import HeatBath, ising, sample
    >>> models = [ising.from_matrix(jnp.eye(1) * bias) for bias in (0.0, 1.0)]
    >>> options = dict(sampler=HeatBath(), num_draws=500)
    >>> args = jax.random.key(0), ising.energy
    >>> p, q = (sample(*args, each, jnp.zeros((20, 1)), **options) for each in models)
    >>> found = divergence(ising.energy, models[0], p, ising.energy, models[1], q)
    >>> bool(abs(found.forward.value - 0.12) < 0.03)  # 0.5 - log 2 + log(1 + 1/e)
    True
    """
    models = (energy, params), (other_energy, other_params)
    # log of q / p without the partition functions, at draws of p and at draws of q.
    at_p, at_q = (
        _energies(*models[0], each) - _energies(*models[1], each)
        for each in (draws, other_draws)
    )
    num_batches = min(chain_batches(len(each))[-1] + 1 for each in (at_p, at_q))
    batches = [np.arange(len(e)) * num_batches // len(e) for e in (at_p, at_q)]

    def quantities(included):
        p, q = (
            each[included[batch]].ravel()
            for each, batch in zip((at_p, at_q), batches, strict=True)
        )
        both = np.concatenate([p, q])
        ratio = mbar(np.stack([0 * both, -both]), np.array([len(p), len(q)]))[0][1]
        shannon = (
            np.log(2)
            - np.logaddexp(0, p - ratio).mean() / 2
            - np.logaddexp(0, ratio - q).mean() / 2
        )
        return np.array([ratio - p.mean(), q.mean() - ratio, shannon, ratio])

    found = Divergence(*map(with_error, *jackknife(quantities, num_batches)))
    return found._replace(
        forward=_not_negative(found.forward),
        backward=_not_negative(found.backward),
        jensen_shannon=_not_negative(found.jensen_shannon),
    )


def _not_negative(found):
    """End an interval at 0, if the value is not below 0 itself."""
    return found._replace(lower=min(found.value, max(found.lower, 0.0)))


@driver
def log_z_from_state(
    energy: Energy, params: Params, draws: Draws | State, state: State
) -> Measured:
    """Compute log Z from how often one state occurs among draws of a discrete model.

    Args:
        draws: result of `sample` for this model, or states `(chain, draw, ...)`.
        state: a common state, such as silence, `jnp.zeros(num_units)`.

    >>> from probjax import HeatBath, ising, sample
    >>> flat, x = ising.from_matrix(jnp.zeros((2, 2))), jnp.zeros((20, 2))
    >>> options = dict(sampler=HeatBath(), num_draws=500)
    >>> draws = sample(jax.random.key(0), ising.energy, flat, x, **options)
    >>> found = log_z_from_state(ising.energy, flat, draws, jnp.zeros(2))
    >>> bool(found.lower < np.log(4) < found.upper)
    True
    """
    x = jax.tree.map(np.asarray, states_of(draws))
    equal = [
        (leaf == np.asarray(part)).reshape(*leaf.shape[:2], -1).all(2)
        for leaf, part in zip(jax.tree.leaves(x), jax.tree.leaves(state), strict=True)
    ]
    occurs = np.logical_and.reduce(equal)
    if not occurs.any():
        raise ValueError(
            f"state must occur among the draws, got one that is none of {occurs.size:,}"
            "; try the most frequent row of the data"
        )
    batch = chain_batches(len(occurs))

    def minus_log(included):
        with np.errstate(divide="ignore"):
            return np.array([-np.log(occurs[included[batch]].mean())])

    values, errors = jackknife(minus_log, batch[-1] + 1)
    at_state = float(energy(params, jax.tree.map(as_array, state)))
    return with_error(values[0] - at_state, errors[0])


def _energies(energy, params, draws):
    """Return the energies of draws, `(chain, draw)`, in float64."""
    x = jax.tree.map(as_array, states_of(draws))
    leaves = jax.tree.leaves(x)
    if not leaves or any(leaf.ndim < 2 for leaf in leaves):
        raise ValueError(
            "draws must be the result of sample(...) or states (chain, draw, ...), got "
            f"shape {jax.tree.map(jnp.shape, x)}; try x[:, None] for independent draws"
        )
    check_energy(energy, params, jax.tree.map(lambda leaf: leaf[0], x))
    return np.asarray(_of_all(energy, params, x), float)


@partial(jax.jit, static_argnums=0)
def _of_all(energy, params, x):
    def of_chain(x):
        return jax.lax.map(partial(energy, params), x, batch_size=1000)

    return jax.lax.map(of_chain, x)
