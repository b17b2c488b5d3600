"""Generative models: expectation maximisation with persistent posterior samples.

The joint energy is -log p(x, a) with all its constants. The likelihood p(x) is an
integral over the latents a, but its gradient is an expectation over the posterior,

    d/dparams -log p(x) = mean over p(a|x) of d/dparams joint(params, x, a).

Each row therefore keeps samples of its latents, which a few steps of a sampler move at
the start of a round (the E-step). The loss of the round (the M-step) is

    mean over rows and their latents of joint(params, x, a),    a held fixed.

A round that minimises the loss is a step of EM. EM is slow if the posterior is narrow
(little noise), because the parameters move by about as much as the latents vary. With
one step of an optimizer such as Adam in each round, the fit follows the gradient of the
likelihood itself, which is faster in that case.

Reference: thesis, "Training" of the HAIS chapter; Culpepper, Sohl-Dickstein and
Olshausen, ICCV 2011; Neal and Hinton, "A view of the EM algorithm" (1998).
"""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.bases.checks import check_target
from probjax.checks import check_count
from probjax.data.rows import num_rows, refuse_mask
from probjax.interfaces import Base, Objective, Sampler
from probjax.objectives.particles import check_resumable
from probjax.potential import Posterior
from probjax.recipe import recipe, static
from probjax.samplers.adaptation import check_acceptance, initial_step_size, move_chains
from probjax.trees import first_row, float_dtype, floating
from probjax.types import Context, Data, Params, PRNGKeyArray, Scalar, State


class LatentSampling(NamedTuple):
    """State of the sampler of latents."""

    accept: Scalar
    """Fraction of proposals that were accepted in the last refresh."""
    step_size: Scalar | None
    """Adapted step size; None if the step size is not adapted."""


@recipe
class EM(Objective):
    """Mean over rows of -log p(x, a), with latents a sampled from p(a|x) in each round.

    The context of a row is its latents, leaves `(chain, ...)`.

    Args:
        joint: `joint(params, x, a)`, -log p(x, a) with all its constants.
        base: distribution of the latents, such as their prior, at whose draws chains
            start.
        sampler: sampler of the latents, such as `HMC`. If latents are bounded, pass
            `bounds` to it: with an infinite energy it could only reject proposals.
        num_chains: number of chains of each row, over which the loss is averaged.
        num_moves: number of steps of the sampler in a round.
        target: acceptance rate to which the step size is adapted; None for the
            sampler's `target_acceptance`.
        adapt: whether to adapt the step size, if the sampler has a target acceptance.

    >>> from probjax import HMC, Gaussian, fit, linear
    >>> import optax
    >>> truth = linear.init(jax.random.key(0), 3, 2, noise=0.5)
    >>> data, _ = linear.sample_gaussian(jax.random.key(1), truth, num_draws=200)
    >>> start = linear.init(jax.random.key(2), 3, 2, noise=0.5)
    >>> objective = EM(linear.gaussian, base=Gaussian(2), sampler=HMC(0.3))
    >>> found = fit(jax.random.key(3), objective, start, data, num_rounds=100,
    ...             steps_per_round=1, optimizer=optax.adam(0.02))
    >>> def likelihood(params):
    ...     return jax.vmap(linear.gaussian_log_likelihood, (None, 0))(params, data)
    >>> bool(likelihood(found.params).mean() > likelihood(start).mean())
    True
    """

    joint: Callable[..., Scalar] = static()
    _: KW_ONLY
    base: Base
    sampler: Sampler
    num_chains: int = static(default=1)
    num_moves: int = static(default=10)
    target: float | None = None
    adapt: bool = static(default=True)

    @property
    def has_value(self) -> bool:
        return False

    def __post_init__(self):
        check_count("num_chains", self.num_chains)
        check_count("num_moves", self.num_moves)
        check_acceptance(self.target)

    def prepare(self, params: Params, data: Data) -> Data:
        refuse_mask(data, "sampling latents needs complete rows")
        data = data._replace(x=jax.tree.map(floating, data.x))
        given = (params, first_row(data.x))
        energy = Posterior(self.joint)
        # States drawn with this fixed key are only checked.
        check_target(jax.random.key(0), energy, given, self.base, self.sampler)
        check_resumable(self.sampler)
        return data

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        keys = jax.random.split(key, (num_rows(data), self.num_chains))
        latents = jax.vmap(jax.vmap(self.base.sample))(keys)
        dtype = float_dtype(params)
        latents = jax.tree.map(lambda leaf: leaf.astype(dtype), latents)
        step_size = initial_step_size(self.sampler, self.adapt, params)
        return Context(latents, LatentSampling(jnp.ones((), dtype), step_size))

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        # Samplers compact work over lanes along one axis, so all chains share one axis.
        x = jax.tree.map(lambda rows: jnp.repeat(rows, self.num_chains, 0), data.x)
        latents, accept, step_size = move_chains(
            key,
            Posterior(self.joint),
            (params, x),
            jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), context.rows),
            sampler=self.sampler,
            num_steps=self.num_moves,
            axes=(None, 0),
            step_size=context.shared.step_size,
            target=self.target,
        )
        rows = jax.tree.map(
            lambda leaf: leaf.reshape(-1, self.num_chains, *leaf.shape[1:]), latents
        )
        return Context(rows, LatentSampling(accept.mean(), step_size))

    def row(self, params: Params, x: State, context: State) -> Scalar:
        return jnp.mean(jax.vmap(self.joint, (None, None, 0))(params, x, context))
