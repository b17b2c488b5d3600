"""Full fits of a Potts model to a protein family: 53 sites, 21 letters, all pairs.

With `--data` the family is PF00014 (`msa_pf00014.npz`); without, sequences of the same
shape are drawn from a chain. Rows are weighted by how many others are 80 % alike.
"""

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from probjax import L2, MPF, Data, PseudoLikelihood, fit, potts
from probjax.connectivity import SiteChanges

SITES, LETTERS, ROWS = 53, 21, 4915


def run(options: Options) -> Iterator[Table]:
    x = load(options)
    start = time.perf_counter()
    weights = jax.block_until_ready(potts.sequence_weights(x, num_states=LETTERS))
    weighing = time.perf_counter() - start
    data = Data(x, weights)
    pseudo = PseudoLikelihood(potts.energy, num_states=LETTERS)
    flow = MPF(potts.energy, connectivity=SiteChanges(LETTERS))
    tasks = [
        ("pseudolikelihood", pseudo, 1e-2),
        ("MPF", flow, 1e-3),
        ("MPF", flow, 1e-4),
    ]
    if options.quick:
        tasks = tasks[:2]
    rows = []
    for name, objective, strength in tasks:
        zeros = potts.init(jax.random.key(0), SITES, LETTERS, scale=0.0)
        start = time.perf_counter()
        found = fit(jax.random.key(0), objective, zeros, data, penalty=L2(strength))
        jax.block_until_ready(found.params)
        seconds = time.perf_counter() - start
        rows.append(
            (
                name,
                strength,
                seconds,
                len(found.losses),
                found.gradient_norm,
                bool(found.converged),
                contacts(found.params),
            )
        )
    yield Table(
        f"Potts, {SITES} sites x {LETTERS} letters x {len(x):,} rows, to 1e-5",
        ("loss", "L2", "seconds", "steps", "gradient", "converged", "strongest pairs"),
        rows,
        f"Seconds include compiling. Effective rows: {float(weights.sum()):.0f}, found "
        f"in {weighing:.1f} s. Target: under a minute each. Pairs at least 5 sites "
        "apart, from 0; the disulphide bonds of PF00014 are 1-51, 10-34 and 26-47.",
    )


def load(options: Options) -> np.ndarray:
    if options.data is not None:
        with np.load(options.data / "msa_pf00014.npz") as file:
            return file["msa"]
    rng = np.random.default_rng(0)
    steps = rng.dirichlet(np.full(LETTERS, 0.3), size=(SITES, LETTERS)).cumsum(2)
    x = np.zeros((ROWS, SITES), np.int8)
    x[:, 0] = rng.integers(0, LETTERS, ROWS)
    for site in range(1, SITES):
        chances = rng.random((ROWS, 1))
        x[:, site] = np.minimum(
            (chances > steps[site, x[:, site - 1]]).sum(1), LETTERS - 1
        )
    return x


def contacts(params) -> str:
    scores = np.asarray(jnp.triu(potts.contact_scores(params), 5))
    order = np.argsort(-scores, axis=None)[:5]
    pairs = zip(*np.unravel_index(order, scores.shape), strict=True)
    return " ".join(f"{i}-{j}" for i, j in pairs)
