"""Seconds to a dense Ising model, beside scikit-learn's logistic regressions.

The couplings of a unit are the coefficients of a logistic regression on all others, so
scikit-learn learns the model by one regression per unit, couplings averaged over their
two ends (newton-cholesky, its fastest solver where rows outnumber units). That is the
untied pseudolikelihood; the joint one has half the parameters and a smaller error. It
runs as it comes, in float64 with its own threads, and at its best: in float32, one
thread to a regression and as many regressions at a time as there are cores.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import (
    Options,
    Table,
    count_compilations,
    ratio,
    time_together,
)
from benchmarks.mpf_cost import error, load_tasks
from probjax import MPF, PseudoLikelihood, fit, ising
from probjax.fitting import GradientNorm, fit_nodes
from probjax.models.ising import tap
from probjax.objectives import RISE, LogRISE, NodeLikelihood

TOLERANCE = 1e-5
STOP = GradientNorm(TOLERANCE)
PEER, PEER_AT_BEST = "scikit-learn", "scikit-learn, float32, shared out"
NODE_UNITS = 40


class Found(NamedTuple):
    """What a program learned."""

    matrix: Any
    steps: int | str
    gradient: float | str


def run(options: Options) -> Iterator[Table]:
    check_peer()
    tasks = load_tasks(options)
    for name, (truth, x) in tasks.items():
        if not (options.quick and name == "T1-demo"):
            yield speeds(options, name, truth, x)


def speeds(options: Options, name: str, truth, x) -> Table:
    size = len(truth)
    return Table(
        f"{name}: {size} units, all pairs, {len(x):,} states, to a gradient of 1e-5",
        (
            "program",
            "seconds",
            "of processors",
            "of compiling",
            "steps",
            "gradient",
            "error in J",
            "faster than scikit-learn",
            "than it at best",
            "slower than MPF",
        ),
        speed_rows(options, truth, x),
        "Seconds after compiling, medians of turns; of processors: the sum over all "
        "threads, which other programs disturb less. The last three columns are "
        "medians over turns of how many times faster, or slower. Targets on T1: MPF 8 "
        "times and joint pseudolikelihood 4 times faster than scikit-learn as it comes "
        f"({threads()}), which on a machine that is busy otherwise is slowed down out "
        "of proportion, as its threads wait for each other at work. Gradient: the "
        "largest entry of the gradient of a mean loss in its own parameters, steps: "
        "the most, over all units where each has its own fit. By `fit_nodes` these are "
        f"timed on tasks of up to {NODE_UNITS} units.",
    )


def speed_rows(options: Options, truth, x) -> list[tuple]:
    known: dict[str, Found] = {}
    compiling: dict[str, float] = {}
    worked: dict[str, list[float]] = {}

    def kept(label, program):
        def call():
            before = time.process_time()
            with count_compilations() as compiled:
                known[label] = jax.block_until_ready(program())
            worked.setdefault(label, []).append(time.process_time() - before)
            compiling[label] = compiling.get(label, 0.0) + sum(compiled)
            return known[label].matrix

        return call

    calls = {label: kept(label, call) for label, call in programs(truth, x).items()}
    small = len(truth) <= NODE_UNITS
    turns = (3, 5) if small else (1, 2)
    times = time_together(turns[0 if options.quick else 1], **calls)
    return [
        (
            label,
            times[label].median,
            float(np.median(worked[label][1:])),
            compiling[label],
            found.steps,
            found.gradient,
            error(found.matrix, truth),
            ratio(times[PEER], times[label]),
            ratio(times[PEER_AT_BEST], times[label]),
            ratio(times[label], times["MPF"]),
        )
        for label, found in known.items()
    ]


def programs(truth, x) -> dict[str, Callable[[], Found]]:
    size, data = len(truth), jnp.asarray(x)
    start, chart = ising.from_matrix(jnp.zeros((size, size))), ising.centred(data)

    def jointly(objective):
        key = jax.random.key(0)
        found = fit(key, objective, start, data, chart=chart, stop=STOP)
        matrix = ising.coupling_matrix(found.params)
        return Found(matrix, len(found.losses), float(found.gradient_norm))

    def unit_by_unit(make):
        key = jax.random.key(0)
        found = fit_nodes(key, make, ising.energy, start, data, stop=STOP)
        matrix = ising.coupling_matrix(ising.symmetrised(found.params))
        steps = int(np.isfinite(found.losses).sum(1).max())
        return Found(matrix, steps, float(found.gradient_norm.max()))

    made = {
        "MPF": partial(jointly, MPF(ising.energy)),
        "pseudolikelihood": partial(jointly, PseudoLikelihood(ising.energy)),
        "TAP": lambda: Found(ising.coupling_matrix(tap(data)), "", ""),
        PEER: partial(regressions, x.astype(np.float64)),
        PEER_AT_BEST: partial(shared_out, x.astype(np.float32)),
    }
    if size <= NODE_UNITS:
        makers = (NodeLikelihood, LogRISE, RISE)
        made |= {
            f"{make.__name__}, units": partial(unit_by_unit, make) for make in makers
        }
    return made


def regressions(
    x: np.ndarray,
    in_turn: Callable[..., Any] = map,
    regress: Callable[..., tuple[np.ndarray, int, float]] | None = None,
) -> Found:
    """One regression per unit, `in_turn` deciding how they are shared out.

    A unit's is `regression` on all others unless `regress`, of the same form, is given.
    """
    one = partial(regress or regression, x)
    rows, steps, gradients = zip(*in_turn(one, range(x.shape[1])), strict=True)
    matrix = np.stack(rows)
    return Found((matrix + matrix.T) / 2, max(steps), max(gradients))


def shared_out(
    x: np.ndarray,
    regress: Callable[..., tuple[np.ndarray, int, float]] | None = None,
) -> Found:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), ThreadPoolExecutor(os.cpu_count()) as pool:
        return regressions(x, pool.map, regress)


def regression(x: np.ndarray, unit: int) -> tuple[np.ndarray, int, float]:
    """A row of J, Newton steps, and the largest entry of the mean loss's gradient.

    log p(on) / p(off) = -J_ii - 2 sum_j J_ij x_j for x_i given the others.
    """
    from sklearn.linear_model import LogisticRegression

    others, own = np.delete(x, unit, axis=1), x[:, unit]
    # An infinite C is no penalty.
    peer = LogisticRegression(solver="newton-cholesky", C=np.inf, tol=TOLERANCE)
    peer.fit(others, own)
    excess = peer.predict_proba(others)[:, 1] - own
    slopes = np.append(others.T @ excess, excess.sum()) / len(x)
    row = np.insert(-peer.coef_[0] / 2, unit, -np.ravel(peer.intercept_)[0])
    return row, int(peer.n_iter_[0]), float(np.abs(slopes).max())


def check_peer() -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError as missing:
        raise SystemExit(
            "ising-speed needs a peer: pip install scikit-learn"
        ) from missing


def threads() -> str:
    from threadpoolctl import threadpool_info

    pools = {
        f"{pool['internal_api']} {pool['num_threads']}" for pool in threadpool_info()
    }
    return f"threads: {', '.join(sorted(pools))}"
