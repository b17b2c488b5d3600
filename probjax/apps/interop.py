"""Conversions between probjax, ArviZ and blackjax.

Draws are converted for ArviZ, kernels of blackjax to samplers, and samplers to
algorithms of blackjax. ArviZ and blackjax are imported on call. A target of blackjax is
`logdensity(x) = -potential(x)`; only this module uses that sign.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.interfaces import Sampler
from probjax.lanes import if_any
from probjax.potential import Potential, potential
from probjax.recipe import recipe, static
from probjax.samplers.draws import Draws
from probjax.types import (
    Array,
    Domain,
    Energy,
    Float,
    Info,
    Params,
    PRNGKeyArray,
    PyTree,
    State,
)


def to_arviz(draws: Draws) -> Any:
    """Convert `draws` to `InferenceData`, or to `DataTree` since version 1 of ArviZ.

    The group `posterior` contains the states under the names of their fields, or under
    `x` if a state is a single array. The group `sample_stats` contains
    `acceptance_rate`, and `diverging` and `energy` if the sampler reports them.

    >>> from probjax import HeatBath, ising, sample
    >>> params, x = ising.init(jax.random.key(0), 3), jnp.zeros((2, 3))
    >>> draws = sample(jax.random.key(1), ising.energy, params, x,
    ...                sampler=HeatBath(), num_draws=5)
    >>> to_arviz(draws).posterior["x"].shape
    (2, 5, 3)
    """
    try:
        import arviz
    except ImportError as error:
        raise ImportError("to_arviz requires ArviZ: pip install arviz") from error
    leaves, _ = jax.tree_util.tree_flatten_with_path(draws.x)
    states = {_name(path): np.asarray(leaf) for path, leaf in leaves}
    stats = {"acceptance_rate": np.asarray(draws.info.accept)}
    if draws.info.diverged is not None:
        stats["diverging"] = np.asarray(draws.info.diverged) > 0
    if draws.info.energy is not None:
        stats["energy"] = np.asarray(draws.info.energy)
    groups: Any = {"posterior": states, "sample_stats": stats}
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.from_dict(**groups)
    return arviz.from_dict(groups)


def _name(path):
    return jax.tree_util.keystr(path, simple=True, separator=".") or "x"


class BlackjaxState(NamedTuple):
    """State of a `Blackjax` sampler.

    >>> import blackjax
    >>> def energy(params, x):
    ...     return jnp.sum(x**2) / 2
    >>> kernel = blackjax.mala.build_kernel()
    >>> sampler = Blackjax(blackjax.mala.init, kernel, {"step_size": 0.1})
    >>> state = sampler.init(jax.random.key(0), potential(energy, ()), jnp.ones(2))
    >>> state.x.tolist(), float(state.inner.logdensity)
    ([1.0, 1.0], -1.0)
    """

    x: State
    """Current state of the chain."""
    inner: Any
    """State of the blackjax kernel, with its cached log density."""
    weights: Float[Array, " term"]
    """Weights of the potential for which the log density in `inner` was computed."""


@recipe
class Blackjax(Sampler):
    """Sampler of continuous states that applies a kernel of blackjax.

        kernel = blackjax.nuts.build_kernel()
        parameters = {"step_size": 0.1, "inverse_mass_matrix": jnp.ones(5)}
        sampler = Blackjax(blackjax.nuts.init, kernel, parameters)

    Build a kernel once and reuse it: `build_kernel()` returns a new function on each
    call, for which `sample` compiles again. New values of `parameters` do not compile.

    Args:
        start: the `init` of the kernel's module, a function of `(x, logdensity)` or of
            `(x, logdensity, key)`.
        kernel: the result of `build_kernel()`. Bind arguments that must be static, such
            as sizes: `partial(kernel, max_num_doublings=6)`.
        parameters: all other arguments of the kernel by name, which are traced.

    >>> import blackjax
    >>> from probjax import sample
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> kernel = blackjax.mala.build_kernel()
    >>> sampler = Blackjax(blackjax.mala.init, kernel, {"step_size": 0.1})
    >>> draws = sample(jax.random.key(0), energy, 1.0, jnp.zeros((2, 3)),
    ...                sampler=sampler, num_draws=5)
    >>> draws.x.shape, draws.info.accept.shape
    ((2, 5, 3), (2, 5))
    """

    start: Callable[..., Any] = static()
    kernel: Callable[..., Any] = static()
    parameters: dict[str, PyTree]

    @property
    def domain(self) -> Domain:
        return "reals"

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> BlackjaxState:
        inner = self._start_kernel(key, potential, x)
        return BlackjaxState(x, inner, potential.weights)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: BlackjaxState
    ) -> tuple[BlackjaxState, Info]:
        start_key, step_key = jax.random.split(key)
        inner, info = self.kernel(
            step_key,
            self._reweighted(start_key, potential, state),
            _logdensity(potential),
            **self.parameters,
        )
        dtype = potential.weights.dtype
        accept = getattr(info, "acceptance_rate", getattr(info, "is_accepted", 1))
        report = Info(
            accept=jnp.asarray(accept, dtype),
            diverged=jnp.asarray(getattr(info, "is_divergent", 0), dtype),
            num_leaps=jnp.asarray(getattr(info, "num_integration_steps", 0), dtype),
        )
        return BlackjaxState(inner.position, inner, potential.weights), report

    def _start_kernel(self, key, potential, x):
        needs_key = len(signature(self.start).parameters) == 3
        return self.start(x, _logdensity(potential), *([key] if needs_key else []))

    def _reweighted(self, key, potential, state):
        """Return the kernel's state with log density and gradient at current weights.

        The kernel caches both at the weights of its last step. For a potential of one
        energy they are proportional to its weight and are rescaled; for several
        energies they are computed again.
        """
        inner = state.inner
        names = [name for name in inner._fields if name.startswith("logdensity")]
        cached = {name: getattr(inner, name) for name in names}
        if len(potential.energies) > 1:
            return inner._replace(**_recomputed(self, key, potential, state.x, cached))
        # Values at weight 0 are all 0 and cannot be rescaled.
        lost = state.weights[0] == 0
        fresh = if_any(_recomputed, lost, self, key, potential, state.x, cached)
        scale = potential.weights[0] / jnp.where(lost, 1, state.weights[0])
        return inner._replace(
            **jax.tree.map(lambda f, c: jnp.where(lost, f, scale * c), fresh, cached)
        )


def _recomputed(sampler, key, potential, x, names):
    inner = sampler._start_kernel(key, potential, x)
    return {name: getattr(inner, name) for name in names}


def _logdensity(potential):
    return lambda x: -potential(x)


def to_blackjax(sampler: Sampler, energy: Energy, params: Params) -> Any:
    """Convert a sampler of exp(-energy) to a `blackjax.SamplingAlgorithm`.

    `init(x, key)` checks one state and returns the initial state of the sampler;
    `step(key, state)` moves it. The current state of the chain is its field `x`. Both
    functions contain the parameters, as is usual in blackjax, so that they are compiled
    again for other parameters.

    >>> from probjax import HeatBath, ising
    >>> params = ising.from_matrix([[50, 0], [0, -50]])
    >>> algorithm = to_blackjax(HeatBath(), ising.energy, params)
    >>> state = algorithm.init(jnp.zeros(2), jax.random.key(0))
    >>> state, info = jax.jit(algorithm.step)(jax.random.key(1), state)
    >>> state.x.tolist()
    [0.0, 1.0]
    """
    try:
        from blackjax import SamplingAlgorithm
    except ImportError as error:
        raise ImportError(
            "to_blackjax requires blackjax: pip install blackjax"
        ) from error
    model = potential(energy, params)

    def init(position, rng_key):
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], position)
        x = jax.tree.map(lambda leaf: leaf[0], sampler.prepare(model, rows))
        return sampler.init(rng_key, model, x)

    def step(rng_key, state):
        return sampler.step(rng_key, model, state)

    return SamplingAlgorithm(init, step)
