"""Other libraries: draws for ArviZ, kernels from blackjax, samplers for blackjax.

ArviZ and blackjax load on call. In blackjax a target is `logdensity(x)`, here it is
-potential(x); only this module knows of that sign.
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
from probjax.samplers.sample import Draws
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
    """`draws` as ArviZ has them: `InferenceData` before its version 1, then `DataTree`.

    The group `posterior` has the states, by the names of their fields, `x` if they are
    one array; `sample_stats` has `acceptance_rate`, and `diverging` and `energy` if
    they are told.

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
        raise ImportError("to_arviz needs ArviZ: pip install arviz") from error
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
    """Where a kernel is.

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
    """The current state."""
    inner: Any
    """The kernel's own state."""
    weights: Float[Array, " term"]
    """The weights of the potential whose log density `inner` has."""


@recipe
class Blackjax(Sampler):
    """A kernel of blackjax as a sampler of continuous states.

        kernel = blackjax.nuts.build_kernel()
        parameters = {"step_size": 0.1, "inverse_mass_matrix": jnp.ones(5)}
        sampler = Blackjax(blackjax.nuts.init, kernel, parameters)

    Build a kernel once: each is another function, and with another one `sample`
    compiles anew. Moving `parameters` does not.

    Args:
        start: the `init` of the kernel's module, a function of `(x, logdensity)`, or of
            `(x, logdensity, key)` if it takes three arguments.
        kernel: what `build_kernel()` returns. Sizes that must be known in advance are
            bound to it: `partial(kernel, max_num_doublings=6)`.
        parameters: all its other arguments by name, traced.

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
        inner = self._started(key, potential, x)
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

    def _started(self, key, potential, x):
        needs_key = len(signature(self.start).parameters) == 3
        return self.start(x, _logdensity(potential), *([key] if needs_key else []))

    def _reweighted(self, key, potential, state):
        """The kernel's state with log density and gradient under the weights of now.

        Kernels keep them for the weights they had. Those of a single energy are
        proportional to its weight; of several, they are evaluated again.
        """
        inner = state.inner
        names = [name for name in inner._fields if name.startswith("logdensity")]
        kept = {name: getattr(inner, name) for name in names}
        if len(potential.energies) > 1:
            return inner._replace(**_fresh(self, key, potential, state.x, kept))
        # Of a weight of 0 nothing can be told of another.
        lost = state.weights[0] == 0
        fresh = if_any(_fresh, lost, self, key, potential, state.x, kept)
        scale = potential.weights[0] / jnp.where(lost, 1, state.weights[0])
        return inner._replace(
            **jax.tree.map(lambda f, k: jnp.where(lost, f, scale * k), fresh, kept)
        )


def _fresh(sampler, key, potential, x, names):
    started = sampler._started(key, potential, x)
    return {name: getattr(started, name) for name in names}


def _logdensity(potential):
    return lambda x: -potential(x)


def to_blackjax(sampler: Sampler, energy: Energy, params: Params) -> Any:
    """A sampler of exp(-energy) as a `blackjax.SamplingAlgorithm`.

    `init(x, key)` checks and starts one state, `step(key, state)` moves it; states have
    the current one as `x`. Parameters are part of the two functions, as all targets are
    in blackjax, so other parameters compile anew.

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
        raise ImportError("to_blackjax needs blackjax: pip install blackjax") from error
    model = potential(energy, params)

    def init(position, rng_key):
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], position)
        x = jax.tree.map(lambda leaf: leaf[0], sampler.prepare(model, rows))
        return sampler.init(rng_key, model, x)

    def step(rng_key, state):
        return sampler.step(rng_key, model, state)

    return SamplingAlgorithm(init, step)
