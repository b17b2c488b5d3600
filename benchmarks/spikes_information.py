"""What papers report of a recording: entropies, multi-information, heat capacity.

With 15 neurons all of it can be enumerated. With 50 neurons the interval of the entropy
is compared with one much longer run.

Reference: Schneidman, Berry, Segev and Bialek, Nature 440, 1007 (2006), for the share
of the multi-information that pairs explain; Tkacik et al., PNAS 112, 11508 (2015), for
the heat capacity.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from probjax import HeatBath, MaximumLikelihood, exact, fit, ising, sample, sandwich
from probjax.annealing import (
    Measured,
    log_z_from_state,
    model_entropy,
    temperature_curve,
)
from probjax.bases import fit_bernoulli
from probjax.diagnostics import multi_information

TEMPERATURES = (0.5, 0.75, 1.0, 1.5, 2.0)
QUANTITIES = {
    "log_z": "log Z",
    "energy": "mean energy",
    "heat_capacity": "heat capacity",
    "entropy": "entropy",
}
KNOWN = {"independent": 6.569, "model": 6.473, "fraction": 0.60}
NUM_RUNS, LEAST_HITS = 30, 26
BITS = np.log(2)


class Size(NamedTuple):
    """Length of a run from which an entropy is estimated."""

    chains: int
    draws: int
    steps: int


RUN, LONG_RUN, QUICK_RUN = Size(100, 100, 300), Size(1000, 400, 3000), Size(50, 50, 100)


def exact_fit(x: np.ndarray) -> ising.Params:
    start = ising.init(jax.random.key(0), x.shape[1])
    objective = MaximumLikelihood(ising.energy)
    return fit(jax.random.key(1), objective, start, x).params


def few_neurons(options: Options, x: np.ndarray) -> Table:
    """Entropies of 15 neurons, and one tempered run against enumeration."""
    size = x.shape[1]
    params = exact_fit(x)
    log_probs = np.asarray(exact.log_probs(ising.energy, params, size), float)
    place = 2 ** np.arange(size)[::-1]
    found = multi_information(x, log_probs[x.astype(int) @ place])
    rows = [
        ("entropy of independent neurons, bits", found.independent / BITS, "")
        + known("independent", found.independent / BITS),
        ("entropy of the pairwise model, bits", found.model / BITS, "")
        + known("model", found.model / BITS),
        ("multi-information explained", found.fraction, found.fraction_stderr)
        + known("fraction", found.fraction),
        (
            "multi-information explained, without bias",
            found.corrected_fraction,
            found.fraction_stderr,
            "",
            "",
        ),
    ]
    chains = 40 if options.quick else 200
    curve = temperature_curve(
        jax.random.key(2),
        ising.energy,
        params,
        x[:: len(x) // chains][:chains],
        sampler=HeatBath(),
        temperatures=np.array(TEMPERATURES),
    )
    energies = -log_probs  # up to log Z, which is added where it is needed
    log_z = float(exact.log_z(ising.energy, params, size))
    for temperature in TEMPERATURES:
        truths = thermodynamics(energies - log_z, temperature)
        measured = curve.at(temperature)
        for name, label in QUANTITIES.items():
            if name == "heat_capacity" or temperature == 1:
                rows.append(
                    compared(
                        f"{label} at T = {temperature:g}", measured[name], truths[name]
                    )
                )
    draws = sample(
        jax.random.key(3),
        ising.energy,
        params,
        x[:: len(x) // chains][:chains],
        sampler=HeatBath(),
        num_draws=200,
        num_warmup=100,
        thin=2,
    )
    silence = log_z_from_state(ising.energy, params, draws, jnp.zeros(size))
    rows.append(compared("log Z from the share of silence", silence, log_z))
    return Table(
        "15 neurons: entropies in bits, and thermodynamics of the exact fit",
        ("quantity", "found", "stderr", "known", "difference, stderr"),
        rows,
        "Entropies of data are plug-in estimates, whose known values are published "
        "figures of this recording, computed by another program; without bias: by "
        "Miller-Madow and Grassberger. Thermodynamics are those of one tempered run "
        f"of {chains} chains, in nats, and known by a sum over all states.",
    )


def known(name: str, value: float) -> tuple[float, str]:
    """The known value, and whether the found one rounds to it."""
    digits = 2 if name == "fraction" else 3
    return KNOWN[name], "0" if round(value, digits) == KNOWN[name] else "NOT equal"


def compared(label: str, found: Measured, truth: float) -> tuple:
    z = (found.value - truth) / found.stderr
    return (label, found.value, found.stderr, truth, f"{z:.2f}")


def thermodynamics(energies: np.ndarray, temperature: float) -> dict[str, float]:
    """Sums over all states, given their energies."""
    minus = -energies / temperature
    log_z = np.logaddexp.reduce(minus)
    chances = np.exp(minus - log_z)
    mean = chances @ energies
    variance = chances @ (energies - mean) ** 2
    return {
        "log_z": float(log_z),
        "energy": float(mean),
        "heat_capacity": float(variance / temperature**2),
        "entropy": float(log_z + mean / temperature),
    }


def many_neurons(options: Options, x: np.ndarray) -> Table:
    """Intervals of the entropy of a pairwise model of 50 neurons, over runs."""
    size = x.shape[1]
    sampled = MaximumLikelihood(ising.energy, sampler=HeatBath())
    start = ising.init(jax.random.key(0), size)
    params = fit(jax.random.key(1), sampled, start, x).params
    entropy = partial(entropy_of, params, x)
    usual, long = (QUICK_RUN, RUN) if options.quick else (RUN, LONG_RUN)
    truth = entropy(0, long)
    runs = [entropy(seed, usual) for seed in range(1, 1 + NUM_RUNS)]
    # A run whose bounds of log Z contradict each other has no value.
    without = sum(bool(np.isnan(each.value)) for each in runs)
    runs = [each for each in runs if not np.isnan(each.value)]
    hits = sum(each.lower <= truth.value <= each.upper for each in runs)
    values = np.array([each.value for each in runs])
    stderr = np.mean([each.stderr for each in runs])
    width = np.mean([each.upper - each.lower for each in runs])
    return Table(
        "50 neurons: the entropy of the pairwise model, over repeated runs",
        (
            "runs",
            "long run, bits",
            "its stderr",
            "mean of runs",
            "scatter",
            "mean stderr",
            "mean width",
            "contain the long run",
            "without a value",
        ),
        [
            (
                NUM_RUNS,
                truth.value / BITS,
                truth.stderr / BITS,
                values.mean() / BITS,
                values.std(ddof=1) / BITS,
                stderr / BITS,
                width / BITS,
                hits,
                without,
            )
        ],
        f"A run: {usual.chains} chains of {usual.draws} draws, and `sandwich` of "
        f"{usual.steps} steps; the long run: {long.chains}, {long.draws} and "
        f"{long.steps}. Target: at least {LEAST_HITS} of {NUM_RUNS} intervals contain "
        "the value of the long run. Without a value: the bounds of log Z contradict "
        "each other.",
    )


def entropy_of(params: ising.Params, x: np.ndarray, seed: int, size: Size) -> Measured:
    draw_key, z_key, row_key = jax.random.split(jax.random.key(seed), 3)
    rows = jax.random.choice(row_key, len(x), (size.chains,), replace=False)
    model = partial(sample, energy=ising.energy, params=params, sampler=HeatBath())
    draws = model(draw_key, x=x[rows], num_draws=size.draws, num_warmup=200, thin=5)
    both = sandwich(
        z_key,
        ising.energy,
        params,
        fit_bernoulli(x),
        draws.x[:, -1],
        sampler=HeatBath(),
        num_steps=size.steps,
    )
    return model_entropy(ising.energy, params, draws, both)
