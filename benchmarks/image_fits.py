"""Models of natural image patches, learned as `image-models` compares them.

Analysis models, which are energies of the patch itself, learn by persistent minimum
probability flow, or by flow along short Hamiltonian trajectories; generative ones by
expectation maximisation, with posterior samples that persist.

EM has to tell what a basis does from what the posterior does with it, which is the
harder the less noise there is. So the noise is held at larger values first, and comes
down to its own by stages.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.harness import Options, timed
from probjax import (
    EM,
    HMC,
    MPF,
    ConvergenceWarning,
    PersistentMPF,
    bilinear,
    experts,
    fit,
    linear,
    mcrbm,
)
from probjax.connectivity import Hamiltonian
from probjax.data import datasets, preprocessing

NOISE = 0.1
STEPS = 10
PRIORS = {linear.gaussian: linear.gaussian_prior, linear.laplace: linear.laplace_prior}


class Patches(NamedTuple):
    """White patches, and how they became white."""

    train: jax.Array
    test: jax.Array
    whitening: preprocessing.Whitening


class Learned(NamedTuple):
    """What a model has become."""

    params: Any
    seconds: float
    """That it took, compiling included."""
    particles: jax.Array | None = None
    """Draws of an analysis model, as it was at the start of the last round."""


class Stage(NamedTuple):
    """A part of EM."""

    noise: float
    rate: float
    """Of Adam, at the start; a tenth of it in the end."""
    num_rounds: int


def load(
    options: Options,
    *,
    size: int,
    num_components: int | None,
    num_patches: int,
    num_test: int,
) -> Patches:
    """Logarithms of patches, their largest principal components, rescaled."""
    images = datasets.natural_images(options.data)
    train_key, test_key = jax.random.split(jax.random.key(0))

    def cut(key, images, count):
        light = preprocessing.patches(key, images, size=size, num_patches=count)
        return preprocessing.log_intensity(light)

    train = cut(train_key, images.train, num_patches)
    test = cut(test_key, images.test, num_test)
    whitening = preprocessing.fit_whitening(train, num_components=num_components)
    return Patches(
        preprocessing.whiten(whitening, train),
        preprocessing.whiten(whitening, test),
        whitening,
    )


def laplace_experts(x: jax.Array, count: int, num_rounds: int) -> Learned:
    start = experts.init(jax.random.key(1), x.shape[1], count)
    chart = experts.laplace_chart(start)
    return by_particles(experts.laplace, start, chart, x, num_rounds)


def student_t_experts(x: jax.Array, count: int, num_rounds: int) -> Learned:
    start = student_t_start(x, count)
    chart = experts.student_t_chart(start)
    return by_particles(experts.student_t, start, chart, x, num_rounds)


def student_t_start(x: jax.Array, count: int) -> experts.Params:
    start = experts.init(jax.random.key(1), x.shape[1], count)
    # Such that all together fall off about as fast, whatever their number.
    strength = max(0.6, 2 * x.shape[1] / count)
    return start._replace(strength=jnp.full(count, strength))


def covariance_machine(x: jax.Array, count: int, num_rounds: int) -> Learned:
    """An mcRBM of `count` units, one of three of them a mean unit."""
    energy, start = mcrbm.energy_by_mean_square, mcrbm_start(x, count, 1 / x.shape[1])
    return by_particles(energy, start, mcrbm.chart(start), x, num_rounds)


def printed_machine(x: jax.Array, count: int, num_rounds: int) -> Learned:
    """The same with the energy as it stands in the thesis."""
    start = mcrbm_start(x, count, 1.0)
    return by_particles(mcrbm.energy, start, mcrbm.chart(start), x, num_rounds)


def mcrbm_start(x: jax.Array, count: int, norm_scale: float) -> mcrbm.Params:
    num_mean = count // 3
    return mcrbm.init(
        jax.random.key(1),
        x.shape[1],
        num_factors=num_mean,
        num_covariance=count - num_mean,
        num_mean=num_mean,
        norm_scale=norm_scale,
    )


def by_particles(
    energy: Callable, start: Any, chart: Any, x: jax.Array, num_rounds: int
) -> Learned:
    objective = PersistentMPF(energy, sampler=HMC(0.2, num_steps=5), num_moves=5)
    found, seconds = timed(_fit, objective, start, chart, x, num_rounds, STEPS)
    return Learned(found.params, seconds, found.context.shared.x)


def by_trajectories(
    energy: Callable, start: Any, chart: Any, x: jax.Array, num_rounds: int
) -> Learned:
    # Rows and their own ends can be told apart: descents are shorter than from
    # particles, which all rows share.
    objective = MPF(energy, connectivity=Hamiltonian(0.1, num_steps=20))
    found, seconds = timed(_fit, objective, start, chart, x, num_rounds, STEPS // 3)
    return Learned(found.params, seconds)


def _fit(objective, start, chart, x, num_rounds, steps):
    with warnings.catch_warnings():
        # Rounds are short on purpose.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fit(
            jax.random.key(2),
            objective,
            start,
            x,
            chart=chart,
            num_rounds=num_rounds,
            steps_per_round=steps,
        )


def linear_model(x: jax.Array, joint: Callable) -> Learned:
    """As many latents as sites, from an orthogonal basis."""
    size = x.shape[1]
    start = linear.init(jax.random.key(1), size, size)
    prior = PRIORS[joint](start)
    start = start._replace(basis=jnp.linalg.qr(start.basis)[0] / jnp.sqrt(2.0))
    stages = (Stage(0.4, 0.03, 300), Stage(0.2, 0.02, 150), Stage(NOISE, 0.01, 150))
    objective = EM(joint, base=prior, sampler=HMC(0.1, num_steps=5), num_moves=5)
    return by_stages(objective, start, linear.chart, x, stages)


def bilinear_model(x: jax.Array, sizes: tuple[int, int, int], share: float) -> Learned:
    """Of as many coefficients, signed and positive latents as `sizes` say.

    Args:
        share: of the rounds that are planned.
    """
    coefficients, signed, positive = sizes
    start = bilinear.init(
        jax.random.key(1),
        x.shape[1],
        coefficients,
        num_signed=signed,
        num_positive=positive,
    )
    stages = (Stage(0.4, 0.02, 300), Stage(0.2, 0.01, 200), Stage(NOISE, 0.005, 200))
    sampler = HMC(0.05, num_steps=5, bounds=bilinear.bounds(start))
    objective = EM(
        bilinear.joint, base=bilinear.prior(start), sampler=sampler, num_moves=5
    )
    stages = [
        stage._replace(num_rounds=round(share * stage.num_rounds)) for stage in stages
    ]
    return by_stages(objective, start, bilinear.chart, x, stages)


def by_stages(
    objective: EM, params: Any, chart: Callable, x: jax.Array, stages: Sequence[Stage]
) -> Learned:
    def learn():
        now = params
        for number, (noise, rate, num_rounds) in enumerate(stages):
            now = now._replace(noise=jnp.asarray(noise, x.dtype))
            rates = optax.cosine_decay_schedule(rate, num_rounds, alpha=0.1)
            now = fit(
                jax.random.key(number),
                objective,
                now,
                x,
                chart=chart(now),
                optimizer=optax.adam(rates),
                num_rounds=num_rounds,
                steps_per_round=1,
            ).params
        return now

    return Learned(*timed(learn))
