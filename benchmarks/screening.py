"""Interaction screening against the couplings that a public package learned.

`--data` names a folder with `screening/`: counted states of four spins and what
GraphicalModelLearning.jl finds by RISE, logRISE and regularised pseudolikelihood with
its own strengths of the L1 penalty, biases on the diagonal.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from probjax import L1, Data, ising
from probjax.fitting import fit_nodes
from probjax.objectives import RISE, LogRISE, NodeLikelihood, screening_strength

METHODS = {
    "RISE": (RISE, 0.4),
    "logRISE": (LogRISE, 0.8),
    "RPLE": (NodeLikelihood, 0.2),
}


def run(options: Options) -> Iterator[Table]:
    if options.data is None:
        raise SystemExit("screening needs --data, a folder that holds screening/")
    folder = options.data / "screening"
    with jax.enable_x64(True):
        rows = [row(name, folder) for name in METHODS]
    yield Table(
        "Couplings of four spins, unit by unit, symmetrised",
        ("loss", "lambda", "J12", "theirs", "largest difference", "converged"),
        rows,
        "Target: 1e-5.",
    )


def row(name, folder) -> tuple:
    make, constant = METHODS[name]
    samples = np.loadtxt(folder / "c_samples.csv", delimiter=",")
    theirs = np.loadtxt(folder / f"c_{name}_learned.csv", delimiter=",")
    data = Data(ising.bits(samples[:, 1:]), jnp.asarray(samples[:, 0]))
    start = ising.from_matrix(np.zeros(theirs.shape))
    strength = screening_strength(len(theirs), samples[:, 0].sum(), constant=constant)
    # A coupling of spins is -J / 2.
    penalty = L1(strength / 2, weights=ising.couplings_only(start))
    key = jax.random.key(0)
    found = fit_nodes(key, make, ising.energy, start, data, penalty=penalty)
    ours = np.asarray(
        ising.to_fields(ising.symmetrised(found.params), spins=True).coupling
    )
    pairs = np.triu_indices(len(theirs), 1)
    worst = np.abs(ours - theirs)[pairs].max()
    return name, strength, ours[0, 1], theirs[0, 1], worst, bool(found.converged.all())
