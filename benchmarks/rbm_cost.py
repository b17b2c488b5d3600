"""What minimum probability flow costs on an RBM of 784 x 200 units, way by way.

The generic path evaluates the energy once per flip. The exact form goes over visible
units; the products replace that loop by P matrix products. The least that P products
can cost is those products alone, forwards and backwards.

Last, epochs of contrastive divergence beside those of scikit-learn's `BernoulliRBM`,
whose algorithm is the persistent one with a chain for every row of a batch.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import Options, Table, peak_memory, ratio, time_together
from probjax import (
    MPF,
    ContrastiveDivergence,
    Data,
    PersistentDivergence,
    closed_form,
    fit,
    rbm,
)
from probjax.data import datasets, preprocessing
from probjax.fitting.chunk_size import default_chunk_size
from probjax.fitting.loss import loss_over_rows

VISIBLE, HIDDEN, MANY_ROWS = 784, 200, 10_000
BATCH, RATE = 100, 0.01
SGD = optax.sgd(RATE)


def run(options: Options) -> Iterator[Table]:
    yield ways(options)
    yield against_bare_products(options)
    yield errors(options)
    yield memory()
    yield epochs(options)


def plain_energy(params, x):
    """The energy without its closed forms: what any user's function is."""
    return rbm.energy(params, x)


@closed_form(flip_gaps=rbm.exact_gaps)
def exact_energy(params, x):
    return rbm.energy(params, x)


def naive_loss(params, x):
    """The flow as it is first written down: all flips of all rows at once."""

    def half_gaps(row):
        flips = jnp.abs(row - jnp.eye(VISIBLE))
        return (
            rbm.energy(params, row) - jax.vmap(rbm.energy, (None, 0))(params, flips)
        ) / 2

    return jax.nn.logsumexp(jax.vmap(half_gaps)(x)) - jnp.log(len(x))


def digits(count: int) -> jax.Array:
    """Sparse rows of bits, as many of them on as in a handwritten digit."""
    return jax.random.bernoulli(jax.random.key(1), 0.13, (count, VISIBLE)).astype(float)


def machine(largest: float = 1.0) -> rbm.Params:
    """Weights within `largest`, as a trained machine's: a few are that large."""
    params = rbm.init(jax.random.key(0), VISIBLE, HIDDEN, scale=1.0)
    return params._replace(
        weight=largest * params.weight / jnp.abs(params.weight).max()
    )


def value_and_gradient(energy, params, x):
    data, objective = Data(x), MPF(energy)
    size = default_chunk_size(objective, params, data)
    of_rows = partial(loss_over_rows, objective, chunk_size=size)
    function = jax.jit(of_rows)
    return lambda: function(params, data, ())


def ways(options: Options) -> Table:
    params, few = machine(), 40 if options.quick else 100
    naive = jax.jit(jax.value_and_grad(naive_loss))
    times = time_together(
        3 if options.quick else 5,
        naive=lambda x=digits(few): naive(params, x),
        generic=value_and_gradient(plain_energy, params, digits(few)),
        exact=value_and_gradient(exact_energy, params, digits(1000)),
        products=value_and_gradient(rbm.energy, params, digits(1000)),
    )
    seconds = {
        "naive: vmap over rows and flips": times["naive"].median * 1000 / few,
        "generic: MPF of a plain function": times["generic"].median * 1000 / few,
        "exact form": times["exact"].median,
        "products, P = 8": times["products"].median,
    }
    naive_seconds, generic_seconds, *_ = seconds.values()
    return Table(
        f"Value and gradient per 1,000 rows, {VISIBLE} x {HIDDEN}",
        ("way", "seconds", "faster than naive", "faster than generic"),
        [
            (name, own, naive_seconds / own, generic_seconds / own)
            for name, own in seconds.items()
        ],
        "Targets: the exact form 40 and the products 250 times faster than a generic "
        "path that was taken to need 37 s.",
    )


def against_bare_products(options: Options) -> Table:
    x, rows = digits(MANY_ROWS), []
    for largest, count in ((1.0, 8), (2.0, 16)):
        params = machine(largest)
        times = time_together(
            3 if options.quick else 7,
            ours=value_and_gradient(rbm.energy, params, x),
            bare=lambda p=params, n=count: bare(p.weight, x, n),
        )
        seconds = (times["ours"].median, times["bare"].median)
        rows.append((count, *seconds, ratio(times["ours"], times["bare"])))
    return Table(
        f"Value and gradient of {MANY_ROWS:,} x {VISIBLE} x {HIDDEN}",
        ("P", "ours, s", "bare, s", "ratio"),
        rows,
        "Bare: one product forwards and two backwards per term, two for the fields. "
        "Target: ratio at most 1.3 at P = 8.",
    )


@partial(jax.jit, static_argnums=2)
def bare(weight, x, count):
    """The products alone, of arrays of the right shapes, in chunks as ours."""
    size = default_chunk_size(MPF(rbm.energy), machine(), Data(x))
    chunks = -(-len(x) // size)
    size = -(-len(x) // chunks)

    def add(i, total):
        rows = jax.lax.dynamic_slice_in_dim(
            x, jnp.minimum(i * size, len(x) - size), size
        )
        field = rows @ weight
        gaps = jnp.zeros_like(rows)
        for p in range(count):
            gaps = gaps + (field + p) @ weight.T
        back = jnp.zeros_like(field)
        for p in range(count):
            back = back + gaps @ (weight + p)
            total = total + gaps.T @ (field + p)
        return total + rows.T @ back

    return jax.lax.fori_loop(0, chunks, add, jnp.zeros_like(weight))


def errors(options: Options) -> Table:
    """The error of the products, in float64, beside their bound."""
    rows = []
    with jax.enable_x64(True):
        x = np.asarray(digits(20), np.float64)
        for largest in (0.1, 0.3, 1.0, 2.3, 5.0, 10.0):
            params = jax.tree.map(lambda leaf: leaf.astype(float), machine(largest))
            truth = jax.jit(jax.vmap(rbm.exact_gaps, (None, 0)))(params, x)
            cells = []
            for count in rbm.NUM_PRODUCTS:
                by_products = partial(rbm.gaps_by_products, num_products=count)
                found = jax.jit(jax.vmap(by_products, (None, 0)))(params, x)
                error = jnp.abs(found - truth).max(0)
                bound = rbm.tail_bound(params.weight, count)
                held = bool(jnp.all(error <= bound + 1e-11))
                cells.append(
                    f"{error.max():.1e} / {bound.max():.1e}{'' if held else ' BROKEN'}"
                )
            rows.append((largest, *cells, picked(params)))
    return Table(
        "Largest error of a gap / its bound, by number of products",
        ("max |W|", *(f"P = {count}" for count in rbm.NUM_PRODUCTS), "float32 takes"),
        rows,
        "Picked: the fewest products whose bound is below 50 roundings, else exact.",
    )


def picked(params) -> str:
    weight = params.weight.astype(jnp.float32)
    tolerance = 50 * jnp.finfo(weight.dtype).eps
    for count in rbm.NUM_PRODUCTS:
        if rbm.tail_bound(weight, count).max() <= tolerance:
            return f"P = {count}"
    return "exact"


def memory() -> Table:
    """Peak memory of a process that evaluates value and gradient, way by way."""
    program = """
import sys, jax
from benchmarks import rbm_cost
from probjax import rbm
energy = {"exact": rbm_cost.exact_energy, "products": rbm.energy}[sys.argv[1]]
step = rbm_cost.value_and_gradient(energy, rbm_cost.machine(), rbm_cost.digits(10_000))
jax.block_until_ready(step())
"""
    rows = [
        (way, MANY_ROWS, peak_memory(program, way)) for way in ("exact", "products")
    ]
    return Table(
        "Peak memory of value and gradient, all of the process",
        ("way", "rows", "GB"),
        rows,
        "Target: under 1 GB.",
    )


def epochs(options: Options) -> Table:
    """One pass over all rows in batches, ours and scikit-learn's by turns."""
    x = rows_of_bits(options.data)
    moved = ContrastiveDivergence(rbm.energy, rbm.BlockGibbs())
    kept = PersistentDivergence(rbm.energy, rbm.BlockGibbs(), num_particles=BATCH)
    calls = {"CD-1": partial(epoch, moved, x), "PCD-1": partial(epoch, kept, x)}
    peers = {} if not has_peer() else {"one": peer(x, 1), "all": peer(x, None)}
    times = time_together(3 if options.quick else 7, **calls, **peers)
    titles = {"one": "scikit-learn, one BLAS thread", "all": "scikit-learn, all"}
    fastest = min(peers, key=lambda name: times[name].median, default="PCD-1")
    return Table(
        f"An epoch of {len(x):,} x {VISIBLE} x {HIDDEN}, batches of {BATCH}",
        ("way", "seconds", "times as fast as scikit-learn's better"),
        [
            (titles.get(name, name), own.median, ratio(times[fastest], own))
            for name, own in times.items()
        ],
        "Without compiling; checks of the data are in it. Small products of many BLAS "
        "threads wait for each other where other work is about, so the peer has both "
        "settings, in float32. Target: at least 1.",
    )


def rows_of_bits(folder: Path | None) -> np.ndarray:
    """Digits from a folder that has them, else bits as many of which are on."""
    if folder is None:
        return np.asarray(digits(MANY_ROWS), np.float32)
    images = datasets.digits(folder).train[:MANY_ROWS]
    rows = images.reshape(len(images), -1)
    return np.asarray(preprocessing.binarise(rows, threshold=0.5), np.float32)


def epoch(objective, x):
    return fit(
        jax.random.key(0),
        objective,
        rbm.init(jax.random.key(1), VISIBLE, HIDDEN),
        x,
        optimizer=SGD,
        batch_size=BATCH,
        num_rounds=len(x) // BATCH,
        steps_per_round=1,
    ).params


def has_peer() -> bool:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return False
    return True


def peer(x, num_threads: int | None):
    from sklearn.neural_network import BernoulliRBM
    from threadpoolctl import threadpool_limits

    machine = BernoulliRBM(
        HIDDEN, learning_rate=RATE, batch_size=BATCH, n_iter=1, random_state=0
    )

    def call():
        with threadpool_limits(num_threads):
            return machine.fit(x).components_

    return call
