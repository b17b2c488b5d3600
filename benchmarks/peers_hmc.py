"""Hamiltonian Monte Carlo on a Gaussian of condition 1e4, 100 dimensions.

Standard deviations are spaced evenly in logarithm from 1 to 100. All chains start from
exact draws and have leapfrog steps of 1 and no metric: nothing is adapted, so that what
is compared are the kernels. Those that draw momentum anew leap 150 steps, about a
quarter of the widest period, which suits them best; those that keep it leap 10, or 1.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import lookahead
from benchmarks.harness import Options, Table
from benchmarks.hmc_flips import correlation
from benchmarks.lookahead import NUM_STEPS, STEP, Peer, Target
from benchmarks.peer_packages import load
from benchmarks.side_by_side import OURS, Job, Judged, Program, side_by_side
from probjax import HMC, sample
from probjax.samplers import Momentum, standard_flip

FAR = 150
# About what a path of NUTS takes.
LONG = 255
# Steps of which each is a step of the loop over all chains.
LONG_IN_BATCHES = ("blackjax GHMC", "blackjax MCLMC")
TARGET = "Gaussian, 100-d, condition 1e4"


class Drawn(NamedTuple):
    """What a turn came to."""

    x: Any
    """`(chain, draw, n)`"""
    gradients: Any
    """How many a chain had from a draw to the next, in the mean."""


def run(options: Options) -> Iterator[Table]:
    num_chains, budget = (20, 40_000) if options.quick else (100, 40_000)
    target = lookahead.targets()[TARGET]
    x = target.exact(num_chains)
    programs = [*of_ours(target, x, budget), *of_blackjax(target, x, budget)]
    programs += of_numpyro(target, x, budget)
    if options.quick:
        programs = [each for each in programs if each.name not in LONG_IN_BATCHES]
    num_turns = 1 if options.quick else 2
    yield side_by_side(job(target, num_chains, budget), programs, num_turns)


def job(target: Target, num_chains: int, budget: int) -> Job:
    def judge(found: list[Drawn], seconds: float) -> Judged:
        turns = [np.asarray(turn.x) for turn in found]
        spent = [
            x.shape[0] * x.shape[1] * float(turn.gradients)
            for x, turn in zip(turns, found, strict=True)
        ]
        widest = np.array([of_widest(target, x) for x in turns])
        share = 1e6 * widest / spent
        slowest = 1e6 * of_all(target, turns[-1]) / spent[-1]
        off, off_error = lookahead.energy_off(target, np.concatenate(turns))
        cells = (
            float(widest.mean()) / seconds,
            float(share.mean()),
            float(share.std(ddof=1) / np.sqrt(len(share))),
            "too slow to tell" if np.isnan(slowest) else slowest,
            off / off_error,
        )
        return Judged(float(widest.mean()), cells)

    return Job(
        f"{TARGET}: {num_chains} chains of about {budget:,} gradients",
        "time per effective draw, of the first",
        (
            "effective draws a second",
            "per million gradients",
            "+-",
            "of all x_i",
            "z of the energy",
        ),
        judge,
        "Effective draws: of the widest coordinate, x or x^2, whichever is slower; of "
        "all x_i, those of the slowest per million gradients, as paths of one length "
        "come back to where they began in coordinates whose period they hit. Gradients "
        "are those that a chain needs; in a batch NUTS goes on until the longest path "
        "is done, which seconds count. z: the mean energy less the exact one in "
        "standard errors; MCLMC has no Metropolis test, and a bias.",
    )


def of_widest(target: Target, x: np.ndarray) -> float:
    """Effective draws of x and of x^2, the fewer."""
    scaled = x[..., -1] / np.sqrt(float(target.params[-1]))
    times = [correlation(watched).time for watched in (scaled, scaled**2 - 1)]
    return scaled.size / float(np.max(times))


def of_all(target: Target, x: np.ndarray) -> float:
    """Effective draws of the slowest coordinate; NaN if chains are too short."""
    times = [correlation(x[..., i]).time for i in range(x.shape[2])]
    return x[..., 0].size / float(np.max(times))


def of_ours(target: Target, x: jax.Array, budget: int) -> list[Program]:
    known = lookahead.samplers()
    kept = f"{NUM_STEPS} steps of {STEP:g}, {lookahead.REPLACED:g} of momentum replaced"
    fresh = HMC(STEP, num_steps=FAR, momentum=Momentum(0.0), flip=standard_flip)
    samplers = {
        "probjax HMC": (fresh, FAR, f"{FAR} steps of {STEP:g}, fresh momentum"),
        "probjax HMC, slice flips": (known["slice"], NUM_STEPS, kept),
        "probjax HMC, reduced flips": (known["reduced"], NUM_STEPS, kept),
        "probjax look-ahead 4": (known["look-ahead 4"], NUM_STEPS, kept),
    }
    return [
        Program(name, OURS, partial(ours, target, x, sampler, steps, budget), settings)
        for name, (sampler, steps, settings) in samplers.items()
    ]


def ours(target: Target, x: jax.Array, sampler: Any, steps: int, budget: int):
    thin = max(1, target.gradients // steps)
    go = partial(sample, energy=target.energy, params=target.params, x=x)
    # Only single steps tell how many leaps a chain needed.
    info = go(jax.random.key(0), sampler=sampler, num_draws=50).info
    spent = thin * steps * lookahead.leaps_made(sampler, info)[0]

    def call(turn):
        count = budget // (thin * steps)
        key = jax.random.key(turn)
        draws = go(key, sampler=sampler, num_draws=count, thin=thin)
        return Drawn(draws.x, spent)

    return call


def of_blackjax(target: Target, x: jax.Array, budget: int) -> list[Program]:
    def known(name):
        return lookahead.untuned_peers(target, x)[f"blackjax {name}"]

    def far():
        return Peer(partial(known("HMC").make, num_integration_steps=FAR), 1)

    replaced = f"{lookahead.REPLACED:g} of momentum replaced in {NUM_STEPS}"
    made = {
        "HMC": (far, FAR, f"{FAR} steps of {STEP:g}, fresh momentum"),
        "NUTS": (partial(known, "NUTS"), LONG, f"steps of {STEP:g}, fresh momentum"),
        "GHMC": (
            partial(known, "GHMC"),
            target.gradients,
            f"single steps of {STEP:g}, {replaced}",
        ),
        "MCLMC": (
            partial(lookahead.mclmc, target, x),
            target.gradients,
            "step and length of its own tuning, 2 gradients a step",
        ),
    }
    return [
        Program(
            f"blackjax {name}",
            "blackjax",
            partial(by_blackjax, target, x, get, budget // gradients),
            settings,
        )
        for name, (get, gradients, settings) in made.items()
    ]


def by_blackjax(target: Target, x: jax.Array, get: Callable[[], Peer], num_draws: int):
    peer = get()
    algorithm = peer.make(lambda x: -target.energy(target.params, x))
    go_on = lookahead.peer_steps(algorithm.step, num_draws, peer.thin)
    keys = jax.random.split(jax.random.key(4), len(x))
    begun = jax.jit(jax.vmap(algorithm.init))(x, keys)

    def call(turn):
        _, draws, alone, _ = go_on(jax.random.key(turn), begun)
        return Drawn(jnp.swapaxes(draws, 0, 1), alone / num_draws)

    return call


def of_numpyro(target: Target, x: jax.Array, budget: int) -> list[Program]:
    return [
        Program(
            "numpyro HMC",
            "numpyro",
            partial(by_numpyro, target, x, far_hmc, budget // FAR),
            f"{FAR} steps of {STEP:g}, fresh momentum",
        ),
        Program(
            "numpyro NUTS",
            "numpyro",
            partial(by_numpyro, target, x, nuts, budget // LONG),
            f"steps of {STEP:g}, fresh momentum",
        ),
    ]


def by_numpyro(target: Target, x: jax.Array, make: Callable[..., Any], num_draws: int):
    """Its kernels in a loop of our own: `MCMC.run` compiles anew at every call."""
    kernel = make(
        potential_fn=partial(target.energy, target.params),
        step_size=STEP,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )

    def keys(turn):
        return jax.random.split(jax.random.PRNGKey(turn), len(x))

    begun = kernel.init(keys(0), 0, x, (), {})

    @jax.jit
    def go_on(state):
        def draw(state, _):
            state = kernel.sample(state, (), {})
            return state, (state.z, state.num_steps)

        return jax.lax.scan(draw, state, None, length=num_draws)[1]

    def call(turn):
        draws, spent = go_on(begun._replace(rng_key=keys(turn)))
        return Drawn(jnp.swapaxes(draws, 0, 1), spent.mean())

    return call


def far_hmc(**settings: Any):
    return load("numpyro").infer.HMC(num_steps=FAR, trajectory_length=None, **settings)


def nuts(**settings: Any):
    return load("numpyro").infer.NUTS(**settings)
