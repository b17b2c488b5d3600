"""Ising models learned back from 20,000 states, beside what else learns them.

scikit-learn has a logistic regression per unit, couplings averaged over their two ends:
the untied pseudolikelihood. thrml has gradients of the divergence by block Gibbs
chains; chains begun at a batch of rows make that CD-k, which is run with our settings
beside ours. It is asked where the lattice is known: units that are all coupled are as
many blocks, each compiled apart.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import ising_full, ising_lattice
from benchmarks.harness import Options, Table
from benchmarks.ising_fits import (
    BATCH,
    DESCENTS,
    FASTEST,
    KEY,
    SLOWEST,
    Learned,
    descend,
    diverge,
    divergences,
    slowing,
)
from benchmarks.ising_speed import regressions, shared_out
from benchmarks.mpf_cost import error, read
from benchmarks.peers_states import Lattice, thrml_lattice
from benchmarks.side_by_side import OURS, Job, Judged, Program, side_by_side
from probjax import ising

EDGES = ising_lattice.EDGES
COLUMNS = ("error in J", "KL, nats")
NUM_MOVES = 10
BY_DESCENT = "couplings of all pairs tied, gradient 1e-5"
BY_CHAINS = (
    f"{NUM_MOVES} sweeps, colour by colour; batches of {BATCH}, rate from {FASTEST} to "
    f"{SLOWEST} in a line"
)


class Problem(NamedTuple):
    """A truth to be learned, and how far a matrix is from it."""

    x: np.ndarray
    judge: Callable[[np.ndarray], tuple]


def run(options: Options) -> Iterator[Table]:
    yield full(options)
    if not options.quick:
        yield lattice_unknown()
    yield lattice_known(options)


def full(options: Options) -> Table:
    """40 units, all coupled."""
    truth, x = full_problem(options)
    # All 2^40 states are too many to sum over, and nothing else is exact.
    given = Problem(x, lambda matrix: (error(matrix, truth), "no exact sum"))
    return side_by_side(
        job(f"Learning 40 units, all coupled, from {len(x):,} states", given),
        dense(given, x),
        num_turns=3 if options.quick else 7,
    )


def full_problem(options: Options) -> tuple[np.ndarray, np.ndarray]:
    if options.data is not None:
        return read(options.data / "ising_t2.npz")
    truth_key, state_key = jax.random.split(KEY)
    truth = ising_full.connected(truth_key)
    count = ising_full.ROWS // ising_full.CHAINS
    x = ising_full.states(state_key, truth, num_draws=count, thin=20)
    return truth, np.asarray(x.reshape(-1, ising_full.SIZE), np.float32)


def lattice_unknown() -> Table:
    """A torus of 100 units, learned as if all were coupled."""
    given = spin_glass("all pairs")
    return side_by_side(
        job("Learning a torus of 10 x 10, all pairs, from 20,000 states", given),
        dense(given, given.x),
        num_turns=2,
    )


def lattice_known(options: Options) -> Table:
    """The same torus, its couplings alone."""
    given = spin_glass("lattice")
    num_steps = 200 if options.quick else 1000
    programs = [
        *descents(given.x, EDGES, BY_DESCENT.replace("all pairs", "the lattice")),
        Program(
            f"probjax CD-{NUM_MOVES}",
            OURS,
            partial(contrast, given.x, num_steps),
            f"{num_steps} steps; {BY_CHAINS}",
        ),
        Program(
            "scikit-learn, a regression per unit",
            "scikit-learn",
            partial(near_regressions, given.x),
            "newton-cholesky, no penalty, tolerance 1e-5, neighbours only",
        ),
        Program(
            f"thrml, CD-{NUM_MOVES}",
            "thrml",
            partial(thrml_contrast, given.x, num_steps),
            f"{num_steps} steps; {BY_CHAINS}",
        ),
        coniii(),
    ]
    title = "Learning a torus of 10 x 10, its couplings alone, from 20,000 states"
    return side_by_side(job(title, given), programs, 3 if options.quick else 5)


def spin_glass(pairs: str) -> Problem:
    given = ising_lattice.problem(0, ising_lattice.READINGS[ising_lattice.SHOWN])

    def judge(matrix):
        edges = ising_lattice.PAIRS[pairs]
        params = ising.from_matrix(jnp.asarray(matrix), edges=edges)
        learned = Learned(params, 0.0, 0, 0.0, "")
        found = ising_lattice.judge(given, learned, pairs)
        return found.coupling_error, found.divergence

    return Problem(np.asarray(given.train), judge)


def job(title: str, given: Problem) -> Job:
    def judge(found: list[Any], seconds: float) -> Judged:
        return Judged(1.0, given.judge(np.asarray(found[-1], float)))

    return Job(
        title,
        "time, of the first",
        COLUMNS,
        judge,
        "Error in J: mean square over all entries, biases too. KL(truth || learned): "
        "exact where the lattice is known; of all pairs by weights of 20,000 fresh "
        "exact states. Seconds after compiling. scikit-learn as it comes is in "
        "float64; shared out, in float32 with one thread a regression and as many "
        "regressions at a time as there are cores.",
    )


def dense(given: Problem, x: np.ndarray) -> list[Program]:
    peer = "newton-cholesky, no penalty, tolerance 1e-5"
    return [
        *descents(x, None, BY_DESCENT),
        Program(
            "scikit-learn, a regression per unit",
            "scikit-learn",
            partial(every_turn, regressions, x.astype(np.float64)),
            peer,
        ),
        Program(
            "scikit-learn, shared out",
            "scikit-learn",
            partial(every_turn, shared_out, x.astype(np.float32)),
            peer,
        ),
        coniii(),
    ]


def descents(x: np.ndarray, edges: ising.Edges | None, settings: str) -> list[Program]:
    names = {"MPF": "MPF", "PL": "pseudolikelihood"}
    return [
        Program(f"probjax {name}", OURS, partial(descent, loss, x, edges), settings)
        for loss, name in names.items()
    ]


def descent(loss: str, x: np.ndarray, edges: ising.Edges | None):
    data = jnp.asarray(x)
    start = ising.init(KEY, x.shape[1], edges=edges, scale=0.0)

    def call(turn):
        found = descend(DESCENTS[loss], start, data)
        return ising.coupling_matrix(found.params)

    return call


def every_turn(learn: Callable[..., Any], x: np.ndarray):
    return lambda turn: learn(x).matrix


def near_regressions(x: np.ndarray):
    """One regression per unit on its neighbours."""
    from sklearn.linear_model import LogisticRegression

    size, near = x.shape[1], neighbours()
    wide = x.astype(np.float64)

    def call(turn):
        matrix = np.zeros((size, size))
        for unit, others in enumerate(near):
            peer = LogisticRegression(solver="newton-cholesky", C=np.inf, tol=1e-5)
            peer.fit(wide[:, others], wide[:, unit])
            matrix[unit, others] = -peer.coef_[0] / 2
            matrix[unit, unit] = -np.ravel(peer.intercept_)[0]
        return (matrix + matrix.T) / 2

    return call


def neighbours() -> list[list[int]]:
    near: list[list[int]] = [[] for _ in range(ising_lattice.SIZE)]
    for i, j in EDGES:
        near[i].append(j)
        near[j].append(i)
    return near


def contrast(x: np.ndarray, num_steps: int):
    objective = divergences(EDGES, x.shape[1])["CD-10"]
    start, data = ising_lattice.zeros(EDGES), jnp.asarray(x)

    def call(turn):
        found = diverge(objective, start, data, num_rounds=num_steps)
        return ising.coupling_matrix(found.params)

    return call


def thrml_contrast(x: np.ndarray, num_steps: int):
    from thrml import Block, SamplingSchedule
    from thrml.models import IsingTrainingSpec, estimate_kl_grad

    lattice = thrml_lattice(EDGES, x.shape[1])
    rows, once = jnp.asarray(x, bool), SamplingSchedule(NUM_MOVES, 1, 1)

    def gradient(key, params, batch):
        spec = IsingTrainingSpec(
            lattice.model(*params),
            [Block(lattice.nodes)],
            [],
            [],
            lattice.blocks,
            once,
            once,
        )
        begun = [batch[:, sites] for sites in lattice.sites]
        return estimate_kl_grad(
            key, spec, lattice.nodes, lattice.edges, [batch], [], [], begun
        )[:2]

    return sgd(gradient, lattice, rows, slowing(num_steps), num_steps)


def sgd(
    gradient: Callable[..., Any],
    lattice: Lattice,
    rows: jax.Array,
    optimizer: optax.GradientTransformation,
    num_steps: int,
):
    """Descent by thrml's gradients, of weights and biases of spins."""

    @jax.jit
    def train(key):
        def step(carry, number):
            params, state = carry
            batch_key, chain_key = jax.random.split(jax.random.fold_in(key, number))
            picked = jax.random.randint(batch_key, (BATCH,), 0, len(rows))
            slope = gradient(chain_key, params, rows[picked])
            updates, state = optimizer.update(slope, state)
            return (optax.apply_updates(params, updates), state), None

        start = (jnp.zeros(len(lattice.edges)), jnp.zeros(len(lattice.nodes)))
        carry = (start, optimizer.init(start))
        (params, _), _ = jax.lax.scan(step, carry, jnp.arange(num_steps))
        return params

    def call(turn):
        weights, fields = train(jax.random.key(turn))
        first, second = np.array(EDGES).T
        half = jnp.zeros((len(fields), len(fields))).at[first, second].set(weights)
        return ising.coupling_matrix(ising.from_spins(half + half.T, fields))

    return call


def coniii() -> Program:
    """No release builds with a SciPy of today, so there is nothing to call."""

    def prepare():
        raise NotImplementedError("it installed, which no release did; nothing calls it")

    return Program("coniii, pseudolikelihood", "coniii", prepare, "")
