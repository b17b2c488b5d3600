"""Generative models: expectation maximisation by posterior samples that persist.

A joint energy is -log p(x, a) with all its constants. The likelihood of x, its integral
over latents a, has a gradient that needs none,

    d/dparams -log p(x) = mean over p(a|x) of d/dparams joint(params, x, a),

so each row keeps latents of its own, which a few steps of a sampler move at the start
of a round (the E-step), and the loss that a round descends (the M-step) is

    mean over rows and their latents of joint(params, x, a),    a held fixed.

Descending a round to its minimum is EM, which is slow where latents are nearly known
(little noise): it moves by as much as they are uncertain. One step of an optimizer as
Adam in a round follows the gradient of the likelihood itself, and is faster there.

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
from probjax.objectives.particles import refuse_replicas
from probjax.potential import Conditioned
from probjax.recipe import recipe, static
from probjax.samplers.adaptation import check_acceptance, initial_step_size, move_chains
from probjax.trees import float_dtype, floating
from probjax.types import (
    Base,
    Context,
    Data,
    Objective,
    Params,
    PRNGKeyArray,
    Sampler,
    Scalar,
    State,
)


class Sampled(NamedTuple):
    """How the sampling of latents does."""

    accept: Scalar
    """The share of proposals accepted when they were last moved."""
    step_size: Scalar | None
    """The sampler's by now; None if it has none, or does not follow."""


@recipe
class EM(Objective):
    """Mean over rows of -log p(x, a), latents a sampled from p(a|x) round by round.

    A row's context are its latents, leaves `(chain, ...)`.

    Args:
        joint: `joint(params, x, a)`, -log p(x, a) with all its constants.
        base: over the latents, as their prior: where chains start.
        sampler: what moves them, as `HMC`, with bounds where latents have them: at an
            energy of infinity it can only turn down proposals.
        num_chains: latents of each row, which are averaged.
        num_moves: steps of the sampler in a round.
        target: acceptance to which the step size is adapted; None for the sampler's
            `target_acceptance`.
        adapt: whether the step size of a sampler that has a target is adapted.

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
        refuse_mask(data, "latents are sampled given complete rows")
        data = data._replace(x=jax.tree.map(floating, data.x))
        given = (params, jax.tree.map(lambda rows: rows[0], data.x))
        energy = Conditioned(self.joint)
        # What is drawn with this key is looked at, and not used.
        check_target(jax.random.key(0), energy, given, self.base, self.sampler)
        refuse_replicas(self.sampler)
        return data

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        keys = jax.random.split(key, (num_rows(data), self.num_chains))
        latents = jax.vmap(jax.vmap(self.base.sample))(keys)
        kind = float_dtype(params)
        latents = jax.tree.map(lambda leaf: leaf.astype(kind), latents)
        step_size = initial_step_size(self.sampler, self.adapt, params)
        return Context(latents, Sampled(jnp.ones((), kind), step_size))

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        # One axis of all chains, which is what samplers share work along.
        x = jax.tree.map(lambda rows: jnp.repeat(rows, self.num_chains, 0), data.x)
        latents, accept, step_size = move_chains(
            key,
            Conditioned(self.joint),
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
        return Context(rows, Sampled(accept.mean(), step_size))

    def row(self, params: Params, x: State, context: State) -> Scalar:
        return jnp.mean(jax.vmap(self.joint, (None, None, 0))(params, x, context))
