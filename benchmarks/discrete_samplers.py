"""Samplers of bits on networks: effective draws per second and per evaluation.

    E(x) = -b x - v softplus(W_2 softplus(W_1 x + c_1) + c_2)

learns binary digits by persistent chains of `DiscreteLangevin`: 14 x 14 pixels with
`--data`, else 8 x 8. All samplers then start at the same states, after a long run from
the digits. An evaluation is a value-and-gradient, or for the heat bath an energy: a
sweep takes two energies for every pixel, one before and one after the flip.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import Options, Table, time_together, timed
from probjax import HeatBath, PersistentDivergence, Sampler, fit, sample
from probjax.connectivity import RandomFlips
from probjax.data import datasets
from probjax.diagnostics import chains
from probjax.samplers import (
    DiscreteLangevin,
    GibbsWithGradients,
    Metropolis,
    square_root,
    tune,
)

HIDDEN, CHAINS, LANGEVIN_THIN, GIBBS_THIN = 200, 20, 10, 50


class Network(NamedTuple):
    """Parameters of the energy."""

    bias: jax.Array
    weights: tuple[jax.Array, jax.Array, jax.Array]
    offsets: tuple[jax.Array, jax.Array]


class Way(NamedTuple):
    """A sampler, and its cost."""

    sampler: Sampler
    thin: int
    evaluations: int
    """Evaluations for each draw."""


def energy(params: Network, x: jax.Array) -> jax.Array:
    first, second, last = params.weights
    hidden = jax.nn.softplus(first @ x + params.offsets[0])
    hidden = jax.nn.softplus(second @ hidden + params.offsets[1])
    return -params.bias @ x - last @ hidden


def run(options: Options) -> Iterator[Table]:
    images = pixels(options)
    num_rounds = 300 if options.quick else 3000
    params, seconds = timed(trained, jnp.asarray(images), num_rounds)
    starts = settled(params, images, 2_000 if options.quick else 20_000)
    ways = samplers_of(params, starts)
    yield compared(options, params, starts, ways, seconds)


def pixels(options: Options) -> np.ndarray:
    """Binary images, as rows."""
    images = np.asarray(datasets.digits(options.data).train, float)
    if images.shape[1] == 28:
        images = images.reshape(-1, 14, 2, 14, 2).mean((2, 4))
    images = images.reshape(len(images), -1)
    return (images > 0.5 * images.max()).astype(np.float32)


def trained(x: jax.Array, num_rounds: int) -> Network:
    """Network after `num_rounds` steps of Adam, with batches and particles of 200."""
    size = x.shape[1]
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = (HIDDEN, size), (HIDDEN, HIDDEN), (HIDDEN,)
    weights = tuple(
        jax.random.normal(key, shape) / np.sqrt(shape[-1])
        for key, shape in zip(keys, shapes, strict=False)
    )
    mean = jnp.clip(x.mean(0), 0.01, 0.99)
    offsets = jnp.zeros(HIDDEN), jnp.zeros(HIDDEN)
    start = Network(jnp.log(mean / (1 - mean)), weights, offsets)
    objective = PersistentDivergence(energy, DiscreteLangevin(0.1), 200, num_moves=10)
    return fit(
        keys[3],
        objective,
        start,
        x,
        optimizer=optax.adam(optax.cosine_decay_schedule(1e-3, num_rounds)),
        batch_size=200,
        num_rounds=num_rounds,
        steps_per_round=1,
    ).params


def settled(params: Network, images: np.ndarray, num_steps: int) -> jax.Array:
    """States of the chains after a long run from digits."""
    key, x = jax.random.key(1), images[:CHAINS]
    tuned = tune(key, energy, params, x, sampler=DiscreteLangevin(0.1))
    return sample(
        key,
        energy,
        params,
        tuned.x,
        sampler=tuned.sampler,
        num_draws=1,
        num_warmup=num_steps,
    ).x[:, 0]


def samplers_of(params: Network, x: jax.Array) -> dict[str, Way]:
    """The samplers, with tuned step sizes."""

    def langevin(**options: Any) -> Way:
        sampler = DiscreteLangevin(0.1, **options)
        found = tune(jax.random.key(2), energy, params, x, sampler=sampler)
        return Way(found.sampler, LANGEVIN_THIN, LANGEVIN_THIN)

    size = x.shape[1]
    return {
        "heat bath": Way(HeatBath(), 1, 2 * size),
        "Metropolis": Way(Metropolis(RandomFlips(1), size), 1, size),
        "Gibbs with gradients": Way(GibbsWithGradients(), GIBBS_THIN, GIBBS_THIN),
        "Langevin": langevin(),
        "Langevin, square root": langevin(balance=square_root),
    }


def compared(
    options: Options,
    params: Network,
    x: jax.Array,
    ways: dict[str, Way],
    seconds: float,
) -> Table:
    num_draws, repeats = (300, 3) if options.quick else (2000, 5)
    key = jax.random.key(3)

    def draw(way: Way, count: int) -> Any:
        return sample(
            key,
            energy,
            params,
            x,
            sampler=way.sampler,
            thin=way.thin,
            num_draws=count,
        )

    calls = {name: partial(draw, way, 32) for name, way in ways.items()}
    times = time_together(repeats, **calls)
    per_draw = {name: time.seconds / 32 for name, time in times.items()}
    found = {name: quality(params, draw(way, num_draws)) for name, way in ways.items()}
    rows = []
    for name, way in ways.items():
        each, other = found[name], found["heat bath"]
        slower = np.median(per_draw[name] / per_draw["heat bath"])
        cost = float(np.median(per_draw[name]))
        rows.append(
            (
                name,
                each.accept,
                1e3 * cost,
                each.energy / num_draws / cost,
                each.pixels / num_draws / cost,
                1e3 * each.energy / num_draws / way.evaluations / CHAINS,
                each.energy / other.energy / slower,
                each.pixels / other.pixels / slower,
                each.rhat,
            )
        )
    return Table(
        f"A network over {x.shape[1]} bits: {CHAINS} chains of {num_draws:,} draws",
        (
            "sampler",
            "accepted",
            "ms per draw",
            "energies per second",
            "pixels per second",
            "energies per 1,000 evaluations",
            "energies, over heat bath",
            "pixels, over heat bath",
            "R-hat of energy",
        ),
        rows,
        "Effective draws of the energy, and of the median pixel that is not constant. "
        f"A draw of the Langevin samplers is {LANGEVIN_THIN} steps, one of Gibbs with "
        f"gradients {GIBBS_THIN}, the others one sweep. Ratios are medians of turns. "
        f"Training took {seconds:.0f} s.",
    )


class Quality(NamedTuple):
    """Effective numbers of draws of a run."""

    accept: float
    energy: float
    pixels: float
    rhat: float


def quality(params: Network, draws: Any) -> Quality:
    energies = jax.jit(jax.vmap(jax.vmap(partial(energy, params))))(draws.x)
    x = np.asarray(draws.x)
    moving = x.std((0, 1)) > 0.05
    effective = np.asarray(chains.ess_mean(draws.x))[moving]
    return Quality(
        accept=float(draws.info.accept.mean()),
        energy=float(chains.ess_mean(energies)),
        pixels=float(np.median(effective)),
        rhat=float(chains.rhat(energies)),
    )
