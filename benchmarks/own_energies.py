"""Energies without a chart: would scales from the first gradients help?

`fit` descends energies of one's own in plain coordinates. Here their coordinates are
divided by the standard deviation of the row gradient in each parameter, or by the root
of the diagonal of the Hessian, both at the start. Every program runs to the default
stop. A default must never hurt.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from benchmarks.harness import Options, Table, timed
from benchmarks.mpf_cost import drawn_torus
from probjax import L2, MPF, PseudoLikelihood, ScoreMatching, fit, ising, loss, potts
from probjax.fitting.charts import Affine
from probjax.interfaces import Objective

NUM_PROBES = 64


class Task(NamedTuple):
    """A fit of an energy without closed forms."""

    objective: Objective
    start: Any
    x: np.ndarray
    penalty: L2 | None = None


def run(options: Options) -> Iterator[Table]:
    count = 500 if options.quick else 2000
    for name, task in tasks(count).items():
        yield table_of(name, task)


def table_of(name: str, task: Task) -> Table:
    rows = [(label, *descended(task, scales(task))) for label, scales in SCALES.items()]
    return Table(
        f"{name}, {len(task.x):,} rows",
        ("coordinates", "steps", "seconds", "loss", "distance"),
        rows,
        "Seconds without compiling. Distance: as `fit` reports it, in standard errors. "
        "A fit has at most 2,000 steps.",
    )


def plain_ising(params, x):
    return ising.energy(params, x)


def k_pairwise(params, x):
    pairs, counts = params
    return x @ pairs @ x + counts[jnp.sum(x).astype(int)]


def machine(params, x):
    weights, hidden, bias = params
    return -x @ bias - jnp.sum(jax.nn.softplus(x @ weights + hidden))


def plain_potts(params, x):
    return potts.energy(params, x)


def experts(params, x):
    filters, exponents = params
    return jnp.sum(jax.nn.softplus(exponents) * jnp.log1p((filters @ x) ** 2))


def network(params, x):
    first, bias, last = params
    return jnp.sum(x**2) / 2 + last @ jnp.tanh(first @ x + bias)


def tasks(count: int) -> dict[str, Task]:
    random = np.random.default_rng(0)
    normal = random.normal
    _, torus = drawn_torus((6, 6), 1.125, count)
    shared = normal(size=(count, 1))
    rare = (shared + normal(size=(count, 20)) > 2.2).astype(np.float32)
    letters = random.choice(6, (count, 8), p=[0.6, 0.3, 0.07, 0.02, 0.009, 0.001])
    letters[1:] = np.where(
        random.random(letters[1:].shape) < 0.3, letters[:-1], letters[1:]
    )
    mixed = (random.standard_t(4, (count, 8)) @ normal(size=(8, 8))).astype(np.float32)
    widths = (normal(size=(count, 4)) * [0.1, 0.5, 1.0, 4.0]).astype(np.float32)

    def small(*shape, scale=0.1):
        return jnp.asarray(scale * normal(size=shape), jnp.float32)

    return {
        "spin glass, MPF": Task(
            MPF(plain_ising), ising.init(jax.random.key(0), 36), torus
        ),
        "rare bits, pseudolikelihood": Task(
            PseudoLikelihood(plain_ising), ising.init(jax.random.key(0), 20), rare
        ),
        "K-pairwise, pseudolikelihood": Task(
            PseudoLikelihood(k_pairwise),
            (jnp.zeros((20, 20)), jnp.zeros(21)),
            rare,
            L2(1e-5),
        ),
        "RBM, pseudolikelihood": Task(
            PseudoLikelihood(machine),
            (small(36, 8), small(8), small(36)),
            torus,
            L2(1e-4),
        ),
        "Potts, rare letters, pseudolikelihood": Task(
            PseudoLikelihood(plain_potts, num_states=6),
            potts.init(jax.random.key(0), 8, 6),
            letters.astype(np.float32),
            L2(1e-3),
        ),
        "Student's t experts, score matching": Task(
            ScoreMatching(experts),
            (small(8, 8, scale=0.3), jnp.ones(8)),
            mixed,
            L2(1e-2),
        ),
        "network, score matching": Task(
            ScoreMatching(network),
            (small(16, 4), small(16), small(16)),
            widths,
            L2(1e-2),
        ),
    }


def unscaled(task: Task) -> None:
    return None


def by_gradients(task: Task) -> Any:
    """Standard deviation over rows of the gradient, by the loss of single rows."""
    key = jax.random.key(0)
    x = jnp.asarray(task.x[:512])

    @jax.jit
    def deviations(params, x):
        def of_row(row):
            return jax.grad(partial(loss, key, task.objective))(params, row[None])

        return jax.tree.map(lambda g: g.std(0), jax.vmap(of_row)(x))

    return deviations(task.start, x)


def by_curvature(task: Task) -> Any:
    """Root of the diagonal of the Hessian at the start, from random signs."""
    point, unravel = ravel_pytree(task.start)
    x = jnp.asarray(task.x[:2048])

    def value(point):
        params = unravel(point)
        penalty = 0 if task.penalty is None else task.penalty.value(params)
        return loss(jax.random.key(0), task.objective, params, x) + penalty

    @jax.jit
    def diagonal(point):
        def along(key):
            signs = jax.random.rademacher(key, point.shape, point.dtype)
            return signs * jax.jvp(jax.grad(value), (point,), (signs,))[1]

        return jax.lax.map(along, jax.random.split(jax.random.key(1), NUM_PROBES)).mean(
            0
        )

    return unravel(jnp.sqrt(jnp.maximum(diagonal(point), 0)))


SCALES: dict[str, Callable[[Task], Any]] = {
    "plain": unscaled,
    "by row gradients": by_gradients,
    "by curvature": by_curvature,
}


def descended(task: Task, steepness: Any) -> tuple:
    chart = None
    if steepness is not None:
        flat, unravel = ravel_pytree(steepness)
        # No coordinate is stretched more than a hundred times beyond the median.
        floor = jnp.median(flat) / 100 + jnp.finfo(flat.dtype).tiny
        chart = Affine(scale=unravel(1 / jnp.maximum(flat, floor)))
    key = jax.random.key(0)
    call = partial(
        fit, key, task.objective, task.start, task.x, penalty=task.penalty, chart=chart
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
        found, seconds = timed(call)
    return len(found.losses), seconds, float(found.loss), float(found.distance)
