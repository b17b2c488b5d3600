"""Tasks of `defaults`: data, a model, its NumPy program and its float64 minimum."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import defaults_numpy as by_numpy
from benchmarks import potts_fit
from benchmarks.harness import Options
from benchmarks.mpf_cost import drawn_torus, read
from probjax import L2, MPF, Data, PseudoLikelihood, ising, potts, rbm
from probjax.fitting.charts import Affine
from probjax.interfaces import Chart, Objective, Penalty

KEY = jax.random.key(0)
RECORDING_STRENGTH, FAMILY_STRENGTH, MACHINE_STRENGTH = 1e-5, 1e-2, 1e-4
HIDDEN = 10
# Steps of float64 descent for models without an exact Newton step.
DESCENT_STEPS, QUICK_DESCENT_STEPS = 1000, 100


class Task(NamedTuple):
    """A fit, and the means to judge it. Vectors are those of the NumPy program."""

    name: str
    objective: Objective
    start: Any
    data: Any
    penalty: Penalty | None
    best_chart: Chart
    num_rows: float
    """Sum of the weights of the rows."""
    vector: Callable[[Any], np.ndarray]
    """Parameters as a float64 vector."""
    program: by_numpy.Loss
    reference: by_numpy.Loss
    minimum: Callable[[np.ndarray], np.ndarray]
    """Float64 minimum that descent from a vector reaches."""
    variance: Callable[[np.ndarray], np.ndarray] | None
    """Covariance of row gradients at the minimum; None if it is too large, or if the
    loss has several minima."""
    regressed: np.ndarray | None = None
    """Rows for a logistic regression per unit, where it fits the same model."""


def tasks(options: Options) -> Iterator[Task]:
    """Yield the tasks, smaller ones if `quick`, generated ones without data."""
    yield from _lattices(options)
    yield from _recordings(options)
    yield family(options)
    yield machine(options)


def _lattices(options):
    if options.data is None or options.quick:
        shape, count = ((4, 4), 1000) if options.quick else ((10, 10), 5000)
        variances = (("T1-demo-like", 1.125), ("T1-like", 2.5))
        for name, variance in variances[: 1 if options.quick else 2]:
            _, x = drawn_torus(shape, variance, count)
            label = f"{name}, {shape[0]} x {shape[1]}, generated"
            yield pairwise(label, "MPF", x, strength=0.0)
        return
    names = {"T1": "ising_t1", "T1-demo": "ising_t1_demo", "T2": "ising_t2"}
    for name, file in names.items():
        _, x = read(options.data / f"{file}.npz")
        yield pairwise(name, "MPF", x, strength=0.0)
    _, x = read(options.data / "ising_t2.npz")
    yield pairwise("T2", "PL", x, strength=0.0)


def _recordings(options):
    if options.data is None:
        return
    for size in (15,) if options.quick else (15, 50):
        with np.load(options.data / f"spikes_maxent{size}.npz") as file:
            x = np.unpackbits(file["packed"], axis=1)[:, :size].astype(np.float32)
        label = f"{size} neurons, L2 {RECORDING_STRENGTH}"
        yield pairwise(label, "MPF", x, strength=RECORDING_STRENGTH)


def pairwise(name: str, kind: str, x: np.ndarray, *, strength: float) -> Task:
    """An Ising model of all pairs, by "MPF" or "PL"; the penalty spares biases."""
    size = x.shape[1]
    start = ising.from_matrix(np.zeros((size, size), np.float32))
    make = MPF if kind == "MPF" else PseudoLikelihood
    penalty = L2(strength, weights=ising.couplings_only(start)) if strength else None
    loss = partial(by_numpy.pairwise, x, kind, strength=strength)
    return Task(
        name=f"{name}, {kind}",
        objective=make(ising.energy),
        start=start,
        data=jnp.asarray(x),
        penalty=penalty,
        best_chart=ising.centred(x),
        num_rows=len(x),
        vector=_spin_vector,
        program=loss(dtype=np.float32),
        reference=loss(dtype=np.float64),
        minimum=partial(by_numpy.newton, x, kind, strength=strength),
        variance=lambda vector: (
            by_numpy.pairwise_curvature(
                x, kind, vector, strength=strength, variance=True
            ).variance
        ),
        regressed=None if strength else x,
    )


def _spin_vector(params):
    bias, coupling = (np.asarray(v, float) for v in (params.bias, params.coupling))
    first, second = np.triu_indices(len(bias), 1)
    field = bias.copy()
    np.add.at(field, first, coupling)
    np.add.at(field, second, coupling)
    return np.concatenate([field, coupling])


def family(options: Options) -> Task:
    """PF00014, or letters of a chain: a Potts model by pseudolikelihood."""
    x, num_states = potts_fit.load(options), potts_fit.LETTERS
    name = "PF00014" if options.data is not None else "letters of a chain, generated"
    if options.quick:
        x, name = x[:500, :6], f"{name}, 6 sites"
    weights = np.asarray(potts.sequence_weights(x, num_states=num_states))
    start = potts.init(KEY, x.shape[1], num_states, scale=0.0)
    loss = partial(
        by_numpy.potts, x, num_states, weights.astype(float), strength=FAMILY_STRENGTH
    )
    reference = loss(dtype=np.float64)
    return Task(
        name=f"{name}, PL, L2 {FAMILY_STRENGTH}",
        objective=PseudoLikelihood(potts.energy, num_states=num_states),
        start=start,
        data=Data(jnp.asarray(x, jnp.float32), jnp.asarray(weights)),
        penalty=L2(FAMILY_STRENGTH, weights=potts.couplings_only(start)),
        best_chart=_diagonal(x, num_states, weights),
        num_rows=float(weights.sum()),
        vector=_flat,
        program=loss(dtype=np.float32),
        reference=reference,
        minimum=_descent(reference, options),
        variance=None,
    )


def _diagonal(x, num_states, weights):
    """Chart that scales fields and couplings by their curvature at independence."""
    hot = np.eye(num_states)[x] * (weights / weights.sum())[:, None, None]
    frequency = hot.sum(0)
    first, second = np.triu_indices(x.shape[1], 1)
    coupled = 2 * frequency[first][:, :, None] * frequency[second][:, None, :]
    curvature = potts.Params(
        frequency * (1 - frequency) + 1 / weights.sum(), coupled + 2 * FAMILY_STRENGTH
    )
    return Affine(
        scale=jax.tree.map(lambda v: jnp.asarray(v**-0.5, jnp.float32), curvature)
    )


def machine(options: Options) -> Task:
    """An RBM of every second pixel of binarised digits, or of generated bits."""
    x, name = _digits(options)
    start = rbm.init(KEY, x.shape[1], HIDDEN)
    loss = partial(by_numpy.rbm, x, HIDDEN, strength=MACHINE_STRENGTH)
    reference = loss(dtype=np.float64)
    return Task(
        name=f"RBM {x.shape[1]} x {HIDDEN}, {name}, PL, L2 {MACHINE_STRENGTH}",
        objective=PseudoLikelihood(rbm.energy),
        start=start,
        data=jnp.asarray(x),
        penalty=L2(MACHINE_STRENGTH, weights=rbm.weights_only(start)),
        best_chart=rbm.centred(start, jnp.asarray(x)),
        num_rows=len(x),
        vector=_flat,
        program=loss(dtype=np.float32),
        reference=reference,
        minimum=_descent(reference, options),
        variance=None,
    )


def _digits(options):
    if options.data is None:
        _, x = drawn_torus((4, 4), 1.125, 500 if options.quick else 5000)
        return x, "generated"
    with np.load(options.data / "mnist10k.npz") as file:
        digits = file["train"] > 127
    if options.quick:
        digits = digits[:1000, 8:20:2, 8:20:2]
    else:
        digits = digits[:, 4:24:2, 4:24:2]
    return digits.reshape(len(digits), -1).astype(np.float32), "digits"


def _flat(params):
    leaves = jax.tree.leaves(params)
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in leaves])


def _descent(reference, options):
    num_steps = QUICK_DESCENT_STEPS if options.quick else DESCENT_STEPS

    def minimum(start):
        return by_numpy.minimise(reference, start, num_steps=num_steps).x

    return minimum
