"""log Z of experts where it is known, at equal gradients per particle.

The tasks are `laplace` and `student` of `annealing_tasks`: 36 sites, 200 particles from
a unit Gaussian, leapfrog steps of .2. TensorFlow Probability's AIS has one leapfrog a
distribution and fresh momentum; it goes on with energies of the distribution before,
which biases it. blackjax has no AIS: its tempered SMC picks its own temperatures by
effective particles, resamples, and moves by HMC. numpyro has neither.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from benchmarks.annealing_tasks import (
    BASE,
    NUM_PARTICLES,
    SIZE,
    Experts,
    Runs,
    tasks,
)
from benchmarks.hais_convergence import PROGRAMS
from benchmarks.hais_speed import peer_chain
from benchmarks.harness import Options, Table
from benchmarks.peer_packages import load
from benchmarks.side_by_side import OURS, Job, Judged, Program, side_by_side

STEP, LEAPS, KEPT_ESS = 0.2, 5, 0.97


def run(options: Options) -> Iterator[Table]:
    turns = {200: 4} if options.quick else {1000: 20, 10_000: 5}
    known: dict[str, Any] = {**tasks(1, options.data)}
    for name in ("laplace",) if options.quick else ("laplace", "student"):
        for num_gradients, num_turns in turns.items():
            yield side_by_side(
                job(name, known[name], num_gradients),
                programs(known[name], num_gradients),
                num_turns,
            )


def programs(task: Experts, num_gradients: int) -> list[Program]:
    linear = f"{num_gradients:,} distributions, steps of {STEP}, betas in a line"
    return [
        Program(
            "probjax ais, HAIS as published",
            OURS,
            partial(ours, task, "HAIS", num_gradients),
            f"{linear}; momentum persists",
        ),
        Program(
            "probjax ais, as it comes",
            OURS,
            partial(ours, task, "ours", num_gradients),
            f"{num_gradients:,} distributions; steps, metric and betas of its pilot, "
            "whose gradients come on top",
        ),
        Program(
            "TFP, sample_annealed_importance_chain",
            "tfp-nightly",
            partial(by_tfp, task, num_gradients),
            f"{linear}; one leapfrog, fresh momentum",
        ),
        Program(
            "blackjax, adaptive_tempered_smc",
            "blackjax",
            partial(by_blackjax, task, num_gradients),
            f"HMC of {LEAPS} leapfrogs of {STEP}; temperatures that keep "
            f"{KEPT_ESS:.0%} effective, moves that make up the gradients",
        ),
    ]


def job(name: str, task: Experts, num_gradients: int) -> Job:
    def judge(found: list[Any], seconds: float) -> Judged:
        log_z, gradients = np.array(found, float).T
        runs = Runs((log_z - task.truth)[:, None], log_z, log_z)
        cells = (
            runs.rms,
            runs.rms_stderr,
            float(np.mean(log_z - task.truth)),
            float(gradients.mean()),
            1e6 * seconds / float(gradients.mean()),
        )
        return Judged(1.0, cells)

    return Job(
        f"log Z of {SIZE} {name} experts, {num_gradients:,} gradients a particle",
        "time, of the first",
        (
            "rms error, nats",
            "+-",
            "mean error",
            "gradients a particle",
            "us a gradient",
        ),
        judge,
        f"{NUM_PARTICLES} particles; truth {task.truth:.4f}; a key for every turn, "
        "and errors over these. A gradient is one of all particles together. numpyro "
        "has no estimate of log Z.",
    )


def ours(task: Experts, name: str, num_steps: int):
    program = PROGRAMS[name]

    def call(turn):
        key = jax.random.key(turn)
        found = task.run(key, program.sampler, program.pilot, num_steps)
        return float(found.error[0]) + task.truth, program.num_moves(num_steps)

    return call


def by_tfp(task: Experts, num_steps: int):
    tfp = load("tfp-nightly")

    def target(x):
        return -jax.vmap(partial(task.energy, task.params))(x)

    chain = peer_chain(tfp, target, num_steps)

    def call(turn):
        log_weights = chain(jax.random.PRNGKey(turn))
        log_z = logsumexp(log_weights) - np.log(NUM_PARTICLES) + BASE.log_z
        return float(log_z), num_steps

    return call


def by_blackjax(task: Experts, num_gradients: int):
    """Two runs find how many moves at each temperature the gradients allow."""
    num_moves = 1
    for _ in range(2):
        _, count = tempered(task, num_moves)(jax.random.key(0))
        # A gradient more at each temperature, where HMC begins anew.
        num_moves = max(1, round((num_gradients / int(count) - 1) / LEAPS))
    draw = tempered(task, num_moves)

    def call(turn):
        log_z, count = draw(jax.random.key(turn))
        return float(log_z), int(count) * (1 + num_moves * LEAPS)

    return call


def tempered(task: Experts, num_moves: int):
    """An estimate of log Z and the number of temperatures, as a function of a key."""
    blackjax = load("blackjax")

    def log_prior(x):
        return -jnp.sum(x**2) / 2

    def log_rest(x):
        return -task.energy(task.params, x) - log_prior(x)

    knobs = {
        "step_size": STEP,
        "inverse_mass_matrix": jnp.ones(SIZE),
        "num_integration_steps": LEAPS,
    }
    smc = blackjax.adaptive_tempered_smc(
        log_prior,
        log_rest,
        blackjax.hmc.build_kernel(),
        blackjax.hmc.init,
        blackjax.smc.extend_params(knobs),
        blackjax.smc.resampling.systematic,
        KEPT_ESS,
        num_mcmc_steps=num_moves,
    )

    @jax.jit
    def draw(key):
        start_key, key = jax.random.split(key)
        state = smc.init(jax.random.normal(start_key, (NUM_PARTICLES, SIZE)))

        def step(carry):
            state, log_z, count = carry
            state, info = smc.step(jax.random.fold_in(key, count), state)
            return state, log_z + info.log_likelihood_increment, count + 1

        begun = (state, BASE.log_z, 0)
        _, log_z, count = jax.lax.while_loop(
            lambda carry: carry[0].tempering_param < 1, step, begun
        )
        return log_z, count

    return draw
