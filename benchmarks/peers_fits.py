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
    descend,
    diverge,
    divergences,
    slowing,
)
from benchmarks.ising_speed import regression, shared_out
from benchmarks.mpf_cost import T1_VARIANCE, drawn_torus, error, read
from benchmarks.peer_packages import load
from benchmarks.peers_states import Lattice, thrml_lattice
from benchmarks.side_by_side import OURS, Job, Judged, Program, side_by_side
from probjax import exact, ising

COLUMNS = ("error in J", "KL, nats")
NUM_MOVES = 10
TIED = "couplings tied, gradient 1e-5"
REGRESSION = "newton-cholesky, no penalty, tolerance 1e-5"
BY_CHAINS = (
    f"{NUM_MOVES} sweeps, colour by colour; batches of {BATCH}, rate from {FASTEST} to "
    f"{SLOWEST} in a line"
)


class Problem(NamedTuple):
    """States to learn from, and what is asked of a matrix that was learned."""

    x: np.ndarray
    judge: Callable[[np.ndarray], tuple]


class Torus(NamedTuple):
    """A spin glass, states to learn from, and as many to judge by."""

    shape: tuple[int, int]
    truth: np.ndarray
    x: np.ndarray
    fresh: jax.Array

    @property
    def edges(self) -> ising.Edges:
        """Its neighbours."""
        return ising.Edges(exact.lattice.edges(self.shape, periodic=True))

    def exactly(self, matrix: np.ndarray) -> tuple[float, float]:
        """Of couplings on the lattice: their error and KL(truth || learned)."""
        away = matrix - self.truth
        log_z = partial(exact.lattice.log_z, shape=self.shape, periodic=True)
        second = exact.lattice.moments(
            jnp.asarray(self.truth), self.shape, periodic=True
        ).second
        gained = log_z(jnp.asarray(matrix)) - log_z(jnp.asarray(self.truth))
        return float(np.mean(away**2)), float(np.sum(away * second) + gained)

    def by_weights(self, matrix: np.ndarray) -> tuple[float, float | str]:
        """The same of couplings of all pairs, from the fresh states."""
        away, x = matrix - self.truth, np.asarray(self.fresh, float)
        _, gained, effective = ising_lattice.weighed(self.fresh, away)
        wrong = float(np.mean(away**2))
        if effective < ising_lattice.FEWEST_EFFECTIVE:
            return wrong, "too far to weigh"
        return wrong, float(np.sum(away * (x.T @ x) / len(x)) + gained)


def run(options: Options) -> Iterator[Table]:
    yield full(options)
    given = torus(options)
    yield lattice_unknown(given)
    yield lattice_known(options, given)


def full(options: Options) -> Table:
    """40 units, all coupled."""
    truth, x = full_problem(options)
    # Nothing sums over 2^40 states.
    given = Problem(x, lambda matrix: (error(matrix, truth), "no exact sum"))
    return side_by_side(
        job(f"Learning 40 units, all coupled, from {len(x):,} states", given),
        dense(x),
        num_turns=2 if options.quick else 7,
    )


def full_problem(options: Options) -> tuple[np.ndarray, np.ndarray]:
    if options.data is not None:
        return read(options.data / "ising_t2.npz")
    truth_key, state_key = jax.random.split(KEY)
    truth = ising_full.connected(truth_key)
    count = ising_full.ROWS // ising_full.CHAINS
    x = ising_full.states(state_key, truth, num_draws=count, thin=20)
    return truth, np.asarray(x.reshape(-1, ising_full.SIZE), np.float32)


def torus(options: Options) -> Torus:
    """That of `mpf-cost`, or a smaller one."""
    shape, num_rows = ((6, 6), 5000) if options.quick else ((10, 10), 20_000)
    if options.quick or options.data is None:
        truth, x = drawn_torus(shape, T1_VARIANCE, num_rows)
    else:
        truth, x = read(options.data / "ising_t1.npz")
    draw = partial(exact.lattice.sample, num_draws=len(x), periodic=True)
    fresh = draw(jax.random.key(1), jnp.asarray(truth), shape)
    return Torus(shape, np.asarray(truth, float), x, fresh)


def lattice_unknown(torus: Torus) -> Table:
    """A torus learned as if all units were coupled."""
    given = Problem(torus.x, torus.by_weights)
    title = f"Learning {named(torus)}, all pairs, from {len(torus.x):,} states"
    return side_by_side(job(title, given), dense(given.x), num_turns=2)


def lattice_known(options: Options, torus: Torus) -> Table:
    """The same torus, its couplings alone."""
    x, edges = torus.x, torus.edges
    num_steps = 200 if options.quick else 1000
    chains = f"{num_steps} steps; {BY_CHAINS}"
    programs = [
        *descents(x, edges),
        Program(
            f"probjax CD-{NUM_MOVES}",
            OURS,
            partial(contrast, x, edges, num_steps),
            chains,
        ),
        by_regressions(
            x,
            partial(near_regression, neighbours(edges, x.shape[1])),
            f"{REGRESSION}, neighbours only",
        ),
        Program(
            f"thrml, CD-{NUM_MOVES}",
            "thrml",
            partial(thrml_contrast, x, edges, num_steps),
            chains,
        ),
    ]
    title = f"Learning {named(torus)}, its edges known, from {len(x):,} states"
    given = Problem(x, torus.exactly)
    return side_by_side(job(title, given), programs, 2 if options.quick else 5)


def named(torus: Torus) -> str:
    return "a torus of {} x {}".format(*torus.shape)


def job(title: str, given: Problem) -> Job:
    def judge(found: list[Any], seconds: float) -> Judged:
        return Judged(1.0, given.judge(np.asarray(found[-1], float)))

    return Job(
        title,
        "time, of the first",
        COLUMNS,
        judge,
        "Error in J: mean square over all entries, biases too. KL(truth || learned): "
        "exact where the lattice is known; of all pairs by weights of as many fresh "
        "exact states. Seconds after compiling. scikit-learn is at its best, in "
        "float32, one thread a regression and as many at a time as there are cores: "
        "its own threads wait for each other, see `ising-speed`. thrml is asked where "
        "colours are few: of units all coupled each is a block, compiled apart.",
    )


def dense(x: np.ndarray) -> list[Program]:
    return [*descents(x, None), by_regressions(x, regression, REGRESSION)]


def by_regressions(
    x: np.ndarray, regress: Callable[..., Any], settings: str
) -> Program:
    rows = x.astype(np.float32)

    def prepare():
        return lambda turn: shared_out(rows, regress).matrix

    name = "scikit-learn, a regression per unit"
    return Program(name, "scikit-learn", prepare, settings)


def descents(x: np.ndarray, edges: ising.Edges | None) -> list[Program]:
    names = {"MPF": "MPF", "PL": "pseudolikelihood"}
    return [
        Program(f"probjax {name}", OURS, partial(descent, loss, x, edges), TIED)
        for loss, name in names.items()
    ]


def descent(loss: str, x: np.ndarray, edges: ising.Edges | None):
    start, data = zeros(x, edges), jnp.asarray(x)

    def call(turn):
        found = descend(DESCENTS[loss], start, data)
        return ising.coupling_matrix(found.params)

    return call


def zeros(x: np.ndarray, edges: ising.Edges | None) -> ising.Params:
    return ising.init(KEY, x.shape[1], edges=edges, scale=0.0)


def near_regression(near: list[list[int]], x: np.ndarray, unit: int):
    """As `regression`, on the neighbours alone."""
    sites, row = [unit, *near[unit]], np.zeros(x.shape[1])
    row[sites], steps, gradient = regression(x[:, sites], 0)
    return row, steps, gradient


def neighbours(edges: ising.Edges, size: int) -> list[list[int]]:
    near: list[list[int]] = [[] for _ in range(size)]
    for i, j in edges:
        near[i].append(j)
        near[j].append(i)
    return near


def contrast(x: np.ndarray, edges: ising.Edges, num_steps: int):
    objective = divergences(edges, x.shape[1])[f"CD-{NUM_MOVES}"]
    start, data = zeros(x, edges), jnp.asarray(x)

    def call(turn):
        found = diverge(objective, start, data, num_rounds=num_steps)
        return ising.coupling_matrix(found.params)

    return call


def thrml_contrast(x: np.ndarray, edges: ising.Edges, num_steps: int):
    thrml = load("thrml")
    lattice = thrml_lattice(edges, x.shape[1])
    rows, once = jnp.asarray(x, bool), thrml.SamplingSchedule(NUM_MOVES, 1, 1)

    def gradient(key, params, batch):
        spec = thrml.models.IsingTrainingSpec(
            lattice.model(*params),
            [thrml.Block(lattice.nodes)],
            [],
            [],
            lattice.blocks,
            once,
            once,
        )
        begun = [batch[:, sites] for sites in lattice.sites]
        return thrml.models.estimate_kl_grad(
            key, spec, lattice.nodes, lattice.edges, [batch], [], [], begun
        )[:2]

    train = descended(gradient, lattice, rows, slowing(num_steps), num_steps)
    first, second = np.array(edges).T

    def call(turn):
        weights, fields = train(jax.random.key(turn))
        half = jnp.zeros((len(fields), len(fields))).at[first, second].set(weights)
        return ising.coupling_matrix(
            ising.from_fields(half + half.T, fields, spins=True)
        )

    return call


def descended(
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

    return train
