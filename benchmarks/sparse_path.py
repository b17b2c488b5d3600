"""Finding the edges of a graph of 100 nodes from 20,000 states, along an L1 path.

The graph is a 10 x 10 lattice with couplings of spins of one strength and random sign,
its states exact and independent. A member of the path is right if its couplings that
are not zero are the edges, all of them and no other.
"""

import time
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from probjax import L1, MPF, PseudoLikelihood, exact, fit_path, ising

SHAPE, SIZE, ROWS = (10, 10), 100, 20_000


def run(options: Options) -> Iterator[Table]:
    rows = []
    for strength in (0.4,) if options.quick else (0.3, 0.4, 0.5):
        truth, x = lattice(strength)
        for name, make in (("pseudolikelihood", PseudoLikelihood), ("MPF", MPF)):
            rows.append(
                (strength, name, *path_row(make(ising.energy), strength, truth, x))
            )
    yield Table(
        f"L1 path on {SIZE} nodes, {len(edges())} edges, {ROWS:,} states",
        (
            "coupling",
            "loss",
            "seconds",
            "of compiling",
            "strengths",
            "right at",
            "fewest wrong",
            "wrong by rule",
        ),
        rows,
        "Right at: the strengths of L1 at which exactly the edges are found. Rule: "
        "lambda = c sqrt(log(p^2 / .05) / n), c = .2 for the logistic loss and .8 for "
        "the logarithm of the exponential one, and couplings below half the true ones "
        "dropped (Lokhov et al. 2018). Wrong are edges missed and edges invented.",
    )


def edges() -> list[tuple[int, int]]:
    return sorted(exact.lattice.edges(SHAPE, periodic=True))


def lattice(strength: float) -> tuple[np.ndarray, jax.Array]:
    """Whether each pair is an edge, and states."""
    signs, draws = jax.random.split(jax.random.key(0))
    pairs = np.array(edges())
    values = strength * jax.random.rademacher(signs, (len(pairs),), float)
    half = jnp.zeros((SIZE, SIZE)).at[pairs[:, 0], pairs[:, 1]].set(values)
    params = ising.from_fields(half + half.T, jnp.zeros(SIZE), spins=True)
    matrix = ising.coupling_matrix(params)
    x = exact.lattice.sample(draws, matrix, SHAPE, num_draws=ROWS, periodic=True)
    return np.asarray(half[np.triu_indices(SIZE, 1)] != 0), x


def path_row(objective, strength, truth, x) -> tuple:
    start = ising.init(jax.random.key(0), SIZE, scale=0.0)
    penalty = L1(1.0, weights=ising.couplings_only(start))
    learn = partial(fit_path, jax.random.key(0), objective, start, x, penalty=penalty)
    begun = time.perf_counter()
    jax.block_until_ready(learn(smallest=1e-2))
    compiled = time.perf_counter()
    found = jax.block_until_ready(learn(smallest=1e-2))
    seconds = time.perf_counter() - compiled
    wrong = np.sum((np.asarray(found.params.coupling) != 0) != truth, axis=1)
    right = np.asarray(found.strengths)[wrong == 0]
    span = f"{right.min():.3g} to {right.max():.3g}" if len(right) else "none"
    is_flow = objective == MPF(ising.energy)
    by_rule = learn(strengths=np.array([rule(is_flow)]))
    kept = np.abs(np.asarray(by_rule.params.coupling[0])) / 2 > strength / 2
    missed = np.sum(kept != truth)
    return (
        seconds,
        compiled - begun - seconds,
        len(found.strengths),
        span,
        int(wrong.min()),
        int(missed),
    )


def rule(is_flow: bool) -> float:
    """The published strength, in the units of our losses and couplings.

    It is stated for the loss of one node, in couplings of spins, which are -J / 2. The
    losses of all nodes see each coupling twice: added up, the strength per J is the
    same. The logarithm of their sum has the slope of their mean.
    """
    strength = np.sqrt(np.log(SIZE**2 / 0.05) / ROWS)
    return 0.8 * strength / SIZE if is_flow else 0.2 * strength
