"""What a distribution of annealed importance sampling costs.

200 particles of 36 dimensions under Student's t experts, one leapfrog step with
momentum that persists. Of interest is what is left to win: the same program without its
random numbers, and TensorFlow Probability's AIS with one leapfrog step, whose estimate
is biased: it goes on with energies of the distribution before.

Reference: thesis, "Hamiltonian Annealed Importance Sampling", by which 100,000
distributions took 170 seconds.
"""

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table, ratio, time_together
from probjax import HMC, Gaussian, ais, experts
from probjax.annealing import Pilot, linear, reverse_ais
from probjax.samplers import Momentum

SIZE, NUM_PARTICLES = 36, 200
PUBLISHED = 1700.0


def run(options: Options) -> Iterator[Table]:
    tfp = load_peer()
    yield steps(options, tfp)
    yield whole_runs(options)
    yield precision(options)


def load_peer() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tensorflow_probability.substrates.jax as tfp
    except ImportError as error:
        raise SystemExit(
            "hais-speed compares with TensorFlow Probability: pip install tfp-nightly"
        ) from error
    return tfp


def model() -> experts.Params:
    """Filters of condition 6, and strengths of which some have no mean."""
    random = np.random.default_rng(1)
    first, second = (
        np.linalg.qr(random.normal(size=(SIZE, SIZE)))[0] for _ in range(2)
    )
    filters = first * np.geomspace(0.4, 2.4, SIZE) @ second
    strength = np.linspace(0.8, 2.0, SIZE)
    return experts.Params(jnp.asarray(filters), jnp.asarray(strength))


def without_numbers(params: experts.Params, x: jax.Array) -> jax.Array:
    """The same energy under another name, so that it is compiled apart."""
    return experts.student_t(params, x)


def constant(
    key: jax.Array, shape: tuple = (), dtype: Any = float, *, stream: int = 0
) -> jax.Array:
    """No random number, but one that the compiler cannot foresee."""
    return jnp.full(shape, 0.5, dtype) + 0 * jax.random.key_data(key)[0].astype(dtype)


def annealed(energy, sampler, num_steps, pilot=None):
    return ais(
        jax.random.key(0),
        energy,
        model(),
        Gaussian(SIZE),
        sampler=sampler,
        num_particles=NUM_PARTICLES,
        num_steps=num_steps,
        pilot=pilot,
    ).log_z


def bare(num_steps):
    patched = mock.patch.multiple(
        "probjax.random", normal=constant, uniform=constant, fold_in=lambda key, _: key
    )
    with patched:
        return annealed(without_numbers, HMC(0.2), num_steps)


def peer(tfp, num_steps):
    params = model()

    def target(x):
        return -jnp.sum(params.strength * jnp.log1p((x @ params.filters.T) ** 2), -1)

    return partial(peer_chain(tfp, target, num_steps), jax.random.PRNGKey(0))


def peer_chain(tfp, target, num_steps):
    """TFP's log weights of particles from a unit Gaussian, as a function of a key.

    `target` is the log density of all particles together.
    """

    def proposal(x):
        return -jnp.sum(x**2, -1) / 2

    def kernel(log_prob):
        return tfp.mcmc.HamiltonianMonteCarlo(log_prob, 0.2, 1)

    @jax.jit
    def chain(seed):
        start_key, run_key = jax.random.split(seed)
        x = jax.random.normal(start_key, (NUM_PARTICLES, SIZE))
        _, log_weights, _ = tfp.mcmc.sample_annealed_importance_chain(
            num_steps=num_steps,
            proposal_log_prob_fn=proposal,
            target_log_prob_fn=target,
            current_state=x,
            make_kernel_fn=kernel,
            seed=run_key,
        )
        return log_weights

    return chain


def steps(options: Options, tfp: Any) -> Table:
    num_steps, repeats = (1000, 5) if options.quick else (10_000, 9)
    calls = {
        "HAIS": partial(annealed, experts.student_t, HMC(0.2), num_steps),
        "momentum refreshed every 5 steps": partial(
            annealed,
            experts.student_t,
            HMC(0.2, momentum=Momentum(0.5, every=5)),
            num_steps,
        ),
        "a matrix for a metric": partial(
            annealed, experts.student_t, HMC(0.2, metric=jnp.eye(SIZE)), num_steps
        ),
        "without random numbers": partial(bare, num_steps),
        "TFP, one leapfrog": peer(tfp, num_steps),
    }
    with warnings.catch_warnings():
        # TFP's, of dtypes it asks for and does not get.
        warnings.simplefilter("ignore")
        times = time_together(repeats, **calls)
    return Table(
        f"{NUM_PARTICLES} particles x {SIZE} dimensions, {num_steps:,} distributions",
        ("program", "us a distribution", "of HAIS", "of no numbers", "TFP over it"),
        [
            (
                name,
                1e6 * each.median / num_steps,
                ratio(each, times["HAIS"]),
                ratio(each, times["without random numbers"]),
                ratio(times["TFP, one leapfrog"], each),
            )
            for name, each in times.items()
        ],
        "Medians of turns, after compiling. Targets: at most 2.2 times the program "
        "without its numbers; TFP at least 1.6 times slower, 2.5 times with momentum "
        f"refreshed every 5 steps. Published: {PUBLISHED:.0f} us (thesis).",
    )


def whole_runs(options: Options) -> Table:
    """What a pilot and the way back cost beside the way there."""
    num_steps, repeats = (4000, 3) if options.quick else (100_000, 3)
    params, sampler = model(), HMC(0.2)
    x = experts.sample_student_t(jax.random.key(1), params, num_draws=NUM_PARTICLES)

    def back():
        return reverse_ais(
            jax.random.key(0),
            experts.student_t,
            params,
            Gaussian(SIZE),
            x,
            sampler=sampler,
            num_steps=num_steps,
            betas=linear(num_steps),
            pilot=None,
        ).log_z

    lengths = Pilot(spread=None)
    times = time_together(
        repeats,
        there=partial(annealed, experts.student_t, sampler, num_steps),
        back=back,
        adapted=partial(annealed, experts.student_t, sampler, num_steps, lengths),
        whitened=partial(annealed, experts.student_t, sampler, num_steps, Pilot()),
    )
    names = {
        "there": "from the base",
        "back": "from the target",
        "adapted": "from the base, pilot for steps and schedule",
        "whitened": "from the base, pilot for steps, schedule and a matrix",
    }
    return Table(
        f"Whole runs of {num_steps:,} distributions",
        ("run", "seconds", "of the first"),
        [
            (names[name], each.median, ratio(each, times["there"]))
            for name, each in times.items()
        ],
        "Targets: adapting costs less than 1.2, going back no more than going there. A "
        "matrix makes every step dearer, not the pilot. Published: 170 s for 100,000.",
    )


def precision(options: Options) -> Table:
    """float32 beside float64."""
    num_steps = 2000 if options.quick else 100_000
    rows = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            found = ais(
                jax.random.key(2),
                experts.student_t,
                model(),
                Gaussian(SIZE),
                sampler=HMC(0.2),
                num_particles=NUM_PARTICLES,
                num_steps=num_steps,
                pilot=None,
            )
            rows.append(
                ("float64" if wide else "float32", found.log_z, found.stderr, found.ess)
            )
    (_, first, first_error, _), (_, second, second_error, _) = rows
    apart = float(first - second) / float(np.hypot(first_error, second_error))
    return Table(
        f"Precision, {num_steps:,} distributions",
        ("floats", "log Z", "+-", "ESS"),
        rows,
        f"Apart by {apart:.2f} joint standard errors; target 3.",
    )
