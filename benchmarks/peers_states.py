"""States of an Ising model, drawn side by side, with moments that are known exactly.

A torus of 10 x 10 spins, its couplings normal and weak enough for single flips to mix.
thrml redraws the spins of a colour at once, as `ColourGibbs` does. netket's models are
wavefunctions: its Jastrow, the square root of the Ising model's probabilities, sampled
by Metropolis flips of spins that are picked at random.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from benchmarks.ising_lattice import EDGES, SHAPE, SIZE
from benchmarks.peer_packages import load
from benchmarks.side_by_side import OURS, Job, Judged, Program, side_by_side
from probjax import HeatBath, diagnostics, exact, ising, sample
from probjax.samplers import ColourGibbs, colours

VARIANCE = 0.5
NUM_CHAINS, NUM_WARMUP = 200, 200
PAIRS = np.array(EDGES).T


class Lattice(NamedTuple):
    """thrml's words for a lattice."""

    nodes: list
    edges: list
    blocks: list
    """Of the spins of one colour each."""
    sites: list[np.ndarray]
    """Of the blocks."""
    model: Callable[..., Any]
    """Of weights and biases."""


def run(options: Options) -> Iterator[Table]:
    num_draws = 100 if options.quick else 1000
    matrix = exact.lattice.spin_glass(jax.random.key(3), SHAPE, variance=VARIANCE)
    truth = exact.lattice.moments(matrix, SHAPE, periodic=True)
    sweep = f"{NUM_CHAINS} chains, {NUM_WARMUP} sweeps of warm-up, every sweep kept"
    programs = [
        Program(
            "probjax ColourGibbs",
            OURS,
            partial(ours, matrix, ColourGibbs(colours(EDGES, SIZE)), num_draws),
            f"{sweep}; colour by colour",
        ),
        Program(
            "probjax HeatBath",
            OURS,
            partial(ours, matrix, HeatBath(), num_draws),
            f"{sweep}; site by site",
        ),
        Program(
            "thrml, block Gibbs",
            "thrml",
            partial(by_thrml, matrix, num_draws),
            f"{sweep}; colour by colour",
        ),
        Program(
            "netket, MetropolisLocal of a Jastrow",
            "netket",
            partial(by_netket, matrix, num_draws),
            f"{sweep}; {SIZE} flips of sites picked at random a sweep",
        ),
    ]
    yield side_by_side(job(truth, num_draws), programs, 2 if options.quick else 3)


def job(truth: exact.Moments, num_draws: int) -> Job:
    wanted = np.append(truth.mean, np.asarray(truth.second)[*PAIRS])

    def judge(found: list[Any], seconds: float) -> Judged:
        last = np.asarray(found[-1], np.float32)
        effective = np.asarray(diagnostics.ess_mean(statistics(last)))
        worst = float(effective.min())
        means = np.stack([statistics(np.asarray(x, np.float32)).mean(1) for x in found])
        means = means.reshape(-1, means.shape[-1])
        error = means.std(0, ddof=1) / np.sqrt(len(means))
        z = (means.mean(0) - wanted) / error
        cells = (worst / seconds, float(np.sqrt(np.mean(z**2))), float(np.abs(z).max()))
        return Judged(worst, cells)

    return Job(
        f"Drawing states of a torus of 10 x 10, {NUM_CHAINS} x {num_draws:,} sweeps",
        "time per effective state, of the first",
        ("effective states a second", "z, root mean square", "largest z"),
        judge,
        "Effective states: of the slowest of all means E[x_i] and E[x_i x_j] of "
        f"neighbours, {len(wanted)} of them. z: those means less the exact ones in "
        "standard errors, which are seen from the chains of all turns; right is a root "
        "mean square of 1 and a largest, in size, of about 3. Couplings J_ij ~ N(0, "
        f"{VARIANCE}), columns summing to 0. Seconds after compiling, draws kept.",
    )


def statistics(x: np.ndarray) -> np.ndarray:
    """Units and products of neighbours, `(chain, draw, statistic)`."""
    first, second = PAIRS
    return np.concatenate([x, x[..., first] * x[..., second]], -1)


def ours(matrix: jax.Array, sampler: Any, num_draws: int):
    params = ising.from_matrix(matrix, edges=EDGES)

    def call(turn):
        start_key, key = jax.random.split(jax.random.key(turn))
        x = jax.random.bernoulli(start_key, 0.5, (NUM_CHAINS, SIZE)).astype(float)
        return sample(
            key,
            ising.energy,
            params,
            x,
            sampler=sampler,
            num_draws=num_draws,
            num_warmup=NUM_WARMUP,
        ).x

    return call


def thrml_lattice(edges: ising.Edges, size: int) -> Lattice:
    thrml = load("thrml")
    nodes = [thrml.SpinNode() for _ in range(size)]
    pairs = [(nodes[i], nodes[j]) for i, j in edges]
    sites = [np.flatnonzero(mask) for mask in np.asarray(colours(edges, size))]
    blocks = [thrml.Block([nodes[i] for i in own]) for own in sites]

    def model(weights, biases):
        return thrml.models.IsingEBM(nodes, pairs, biases, weights, jnp.ones(()))

    return Lattice(nodes, pairs, blocks, sites, model)


def by_thrml(matrix: jax.Array, num_draws: int):
    thrml = load("thrml")
    lattice = thrml_lattice(EDGES, SIZE)
    spins = ising.to_fields(ising.from_matrix(matrix), spins=True)
    model = lattice.model(spins.coupling[*PAIRS], spins.field)
    program = thrml.models.IsingSamplingProgram(model, lattice.blocks, [])
    schedule = thrml.SamplingSchedule(NUM_WARMUP + 1, num_draws, 1)

    @jax.jit
    def draw(key):
        start_key, key = jax.random.split(key)
        x = jax.random.bernoulli(start_key, 0.5, (NUM_CHAINS, SIZE))
        begun = [x[:, own] for own in lattice.sites]

        def chain(key, begun):
            every = [thrml.Block(lattice.nodes)]
            return thrml.sample_states(key, program, schedule, begun, [], every)[0]

        return jax.vmap(chain)(jax.random.split(key, NUM_CHAINS), begun)

    return lambda turn: draw(jax.random.key(turn))


def by_netket(matrix: jax.Array, num_draws: int):
    netket = load("netket")
    spins = ising.to_fields(ising.from_matrix(matrix), spins=True)
    space = netket.hilbert.Spin(0.5, SIZE)
    walk = netket.sampler.MetropolisLocal(
        space, n_chains=NUM_CHAINS, sweep_size=SIZE, dtype=np.float32
    )
    model = netket.models.Jastrow(param_dtype=jnp.float32)
    # What is sampled is the square of its values.
    lower = np.tril_indices(SIZE, -1)
    params = {"params": {"kernel": spins.coupling[lower] / 2}}

    def call(turn):
        state = walk.init_state(model, params, seed=turn)
        _, state = walk.sample(model, params, state=state, chain_length=NUM_WARMUP)
        draws, _ = walk.sample(model, params, state=state, chain_length=num_draws)
        return (draws + 1) / 2

    return call
