"""Maximum likelihood by sampling on subsets of a recording, and on 200 simulated units.

A fit runs away if its chains fall into a mode in which nearly all units are active. On
simulated data the truth is known. With D the difference of the energies of the fitted
and of the true model, for n rows and k parameters, n Var(D) / k is the mean squared
error of the parameters relative to its limit for large n, over all directions. It is 1
for exact maximum likelihood.
"""

import time
import warnings
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from benchmarks.spikes_judged import SAMPLED, scores
from probjax import HeatBath, fit, ising, sample

NUM_SUBSETS, NUM_SEEDS = 10, 3
LARGEST_RATIO = 1.05


def subsets(options: Options, x: np.ndarray) -> Table:
    generator, rows = np.random.default_rng(11), []
    subsets, seeds = (2, 1) if options.quick else (NUM_SUBSETS, NUM_SEEDS)
    for _ in range(subsets):
        size = int(generator.integers(30, 51))
        chosen = np.sort(generator.choice(x.shape[1], size, replace=False))
        part = x[:, chosen]
        fits = [learn(part, seed) for seed in range(seeds)]
        ratios = [ratio for found in fits for ratio in activity(found[0], part)]
        rows.append(
            (
                size,
                np.median([seconds for _, seconds, _, _ in fits]),
                max(steps for *_, steps, _ in fits),
                max(distance for *_, distance in fits),
                f"{min(ratios):.3f} to {max(ratios):.3f}",
                "no"
                if 1 / LARGEST_RATIO < min(ratios) <= max(ratios) < LARGEST_RATIO
                else "yes",
            )
        )
    return Table(
        f"Random subsets of the 50 neurons, {seeds} seeds each",
        ("neurons", "seconds", "steps", "distance", "mean rate", "ran away"),
        rows,
        "Median seconds, compiling included in the first; largest steps and distances "
        "over seeds; mean rates relative to the data, of chains that start at words "
        f"and where all neurons fire. Ran away: by more than {LARGEST_RATIO - 1:.0%}.",
    )


def learn(x: np.ndarray, seed: int) -> tuple[ising.Params, float, int, float]:
    start = ising.init(jax.random.key(100 + seed), x.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begun = time.perf_counter()
        found = fit(jax.random.key(seed), SAMPLED, start, x)
        jax.block_until_ready(found.params)
    seconds = time.perf_counter() - begun
    return found.params, seconds, len(found.losses), float(found.distance)


def activity(params: ising.Params, x: np.ndarray) -> list[float]:
    """Mean rates relative to the data, of chains from the data and from all ones."""
    run = partial(sample, sampler=HeatBath(), num_draws=200, num_warmup=1000, thin=2)
    starts = jnp.asarray(x[:: len(x) // 200][:200])
    means = [
        run(jax.random.key(number), ising.energy, params, x).x.mean()
        for number, x in enumerate((starts, jnp.ones_like(starts)))
    ]
    return [float(mean) / float(x.mean()) for mean in means]


def simulated(options: Options) -> Table:
    rows = []
    cases = [(100, 20_000)] if options.quick else [(200, 50_000), (300, 50_000)]
    for size, count in cases:
        truth = random_model(size)
        x, others = draws_of(truth, count)
        params, seconds, steps, distance = learn(x, 1)
        error = relative_error(params, truth, others, count)
        agreement = scores(np.asarray(others.T @ others / len(others)), x)
        rows.append((size, count, seconds, steps, distance, error, agreement.pairs))
    return Table(
        "Simulated populations",
        ("units", "rows", "seconds", "steps", "distance", "error", "z of the truth"),
        rows,
        "Seconds include compiling. Error: root mean square error of the parameters in "
        "units of its limit for large n; target 1.3. z of the truth: of pairs, between "
        "these rows and as many other draws of the true model, as a check of the "
        "simulation (1.4).",
    )


def random_model(size: int) -> ising.Params:
    """Units that are rarely active, 30 % of the pairs coupled."""
    generator = np.random.default_rng(0)
    coupled = generator.random((size, size)) < 0.3
    pairs = np.triu(generator.normal(0, 0.125, (size, size)) * coupled, 1)
    bias = generator.normal(3.2, 0.6, size)
    return ising.from_matrix(np.diag(bias) + pairs + pairs.T)


def draws_of(truth: ising.Params, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Twice as many draws, from chains with 20 sweeps between draws."""
    chains, size = 2500, len(truth.bias)
    found = sample(
        jax.random.key(0),
        ising.energy,
        truth,
        jnp.zeros((chains, size)),
        sampler=HeatBath(),
        num_draws=2 * count // chains,
        num_warmup=200,
        thin=20,
    )
    x = np.asarray(found.x).swapaxes(0, 1).reshape(-1, size)
    return x[:count], x[count:]


def relative_error(
    params: ising.Params, truth: ising.Params, x: np.ndarray, count: int
) -> float:
    energies: Callable = jax.jit(jax.vmap(ising.energy, (None, 0)))
    difference = np.asarray(energies(params, x) - energies(truth, x), float)
    size = len(params.bias)
    return float(np.sqrt(count * difference.var() / (size * (size + 1) / 2)))
