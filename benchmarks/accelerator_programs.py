"""Programs of `accelerators`, at the sizes of real jobs: functions and abstract inputs.

A program is a driver as users call it, inside `jit`. Arrays with a leading axis of
rows, chains or particles are marked, so that they can be laid out over many chips.
Parameters that are not learned are inputs, because the compiler would simplify a
program with constants.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from probjax import (
    HMC,
    MPF,
    Gaussian,
    HeatBath,
    PersistentDivergence,
    PseudoLikelihood,
    ais,
    experts,
    fit,
    ising,
    loss,
    potts,
    rbm,
    sample,
    sandwich,
)
from probjax.bases import Bernoulli
from probjax.natural import ConjugateGradient, energy_scores, natural_gradient
from probjax.samplers import ColourGibbs
from probjax.samplers.gibbs import colours

KEY = jax.ShapeDtypeStruct((2,), np.uint32)


class Shape(NamedTuple):
    """Shape of an input."""

    shape: tuple[int, ...]
    is_spread: bool = True
    """Whether the first axis is laid out over the chips."""


class Program(NamedTuple):
    """A function of a key and inputs."""

    job: str
    function: Callable[..., Any]
    inputs: tuple[Shape, ...]
    dtype: Any = np.float32
    """Dtype of the inputs."""
    peer: bool = False
    """Whether it is the program of another library, or one written by hand."""


def zeros_ising(size: int, edges: Any = None) -> ising.Params:
    count = size * (size - 1) // 2 if edges is None else len(edges)
    return ising.Params(jnp.zeros(size), jnp.zeros(count), edges)


def fit_ising(make: Any, key: jax.Array, x: jax.Array) -> Any:
    start = zeros_ising(x.shape[1])
    return fit(key, make(ising.energy), start, x, steps_per_round=100).params


def fit_rbm(hidden: int, key: jax.Array, x: jax.Array) -> Any:
    start = machine(x.shape[1], hidden)
    objective, optimizer = MPF(rbm.energy), optax.sgd(0.1)
    return fit(
        key,
        objective,
        start,
        x,
        optimizer=optimizer,
        steps_per_round=100,
    ).params


def machine(visible: int, hidden: int) -> rbm.Params:
    weight = jnp.full((visible, hidden), 0.01)
    return rbm.Params(weight, jnp.zeros(visible), jnp.zeros(hidden))


def slope_of_rbm(key: jax.Array, x: jax.Array) -> Any:
    def value(params):
        return loss(key, MPF(rbm.energy), params, x)

    return jax.grad(value)(machine(x.shape[1], 200))


def pcd_of_rbm(hidden: int, key: jax.Array, x: jax.Array) -> Any:
    objective = PersistentDivergence(
        rbm.energy, rbm.BlockGibbs(), num_particles=1000, num_moves=1
    )
    return fit(
        key,
        objective,
        machine(x.shape[1], hidden),
        x,
        optimizer=optax.sgd(0.01),
        num_rounds=100,
        steps_per_round=1,
        batch_size=1000,
    ).params


def fit_potts(key: jax.Array, x: jax.Array) -> Any:
    sites, letters = x.shape[1], 21
    pairs = sites * (sites - 1) // 2
    start = potts.Params(
        jnp.zeros((sites, letters)), jnp.zeros((pairs, letters, letters))
    )
    objective = PseudoLikelihood(potts.energy, num_states=letters)
    return fit(key, objective, start, x, steps_per_round=20).params


def hais(particles: int, key: jax.Array, filters: jax.Array) -> Any:
    size = filters.shape[1]
    params = experts.Params(filters, jnp.full(size, 0.9))
    return ais(
        key,
        experts.student_t,
        params,
        Gaussian(size),
        sampler=HMC(0.2),
        num_particles=particles,
        num_steps=1000,
        pilot=None,
    ).log_z


def hamiltonian(key: jax.Array, x: jax.Array, filters: jax.Array) -> Any:
    params = experts.Params(filters, jnp.full(x.shape[1], 0.9))
    sampler = HMC(0.1, num_steps=10)
    return sample(key, experts.student_t, params, x, sampler=sampler, num_draws=100).x


def by_blackjax(key: jax.Array, x: jax.Array, filters: jax.Array) -> Any:
    """The program of `hamiltonian` by blackjax: its peer."""
    import blackjax

    params = experts.Params(filters, jnp.full(x.shape[1], 0.9))
    kernel = blackjax.hmc.build_kernel()

    def log_density(x):
        return -experts.student_t(params, x)

    def step(state, key):
        scales = jnp.ones(x.shape[1])
        state, _ = kernel(key, state, log_density, 0.1, scales, 10)
        return state, state.position

    def chain(key, x):
        keys = jax.random.split(key, 100)
        return jax.lax.scan(step, blackjax.hmc.init(x, log_density), keys)[1]

    return jax.vmap(chain)(jax.random.split(key, len(x)), x)


def heat_bath(key: jax.Array, x: jax.Array, bias: jax.Array, coupling: Any) -> Any:
    params = ising.Params(bias, coupling, None)
    return sample(key, ising.energy, params, x, sampler=HeatBath(), num_draws=100).x


def lattice(side: int) -> tuple[tuple[int, int], ...]:
    sites = np.arange(side * side).reshape(side, side)
    right = zip(sites.ravel(), np.roll(sites, -1, 1).ravel(), strict=True)
    down = zip(sites.ravel(), np.roll(sites, -1, 0).ravel(), strict=True)
    return tuple(sorted({(min(p), max(p)) for p in map(_pair, (*right, *down))}))


def _pair(pair):
    return int(pair[0]), int(pair[1])


def by_colours(key: jax.Array, x: jax.Array, bias: jax.Array, coupling: Any) -> Any:
    edges = ising.Edges(lattice(int(np.sqrt(x.shape[1]))))
    sampler = ColourGibbs(colours(edges, x.shape[1]))
    params = ising.Params(bias, coupling, edges)
    return sample(key, ising.energy, params, x, sampler=sampler, num_draws=10).x


def sandwich_of_rbm(key: jax.Array, x: jax.Array, weight: jax.Array) -> Any:
    visible, hidden = weight.shape
    return sandwich(
        key,
        rbm.energy,
        rbm.Params(weight, jnp.zeros(visible), jnp.zeros(hidden)),
        Bernoulli(visible),
        x,
        sampler=rbm.BlockGibbs(),
        num_steps=1000,
        path=rbm.Growth(jnp.zeros(visible)),
        pilot=None,
    ).log_z


def natural_rbm(key: jax.Array, x: jax.Array) -> Any:
    metric = natural_gradient(
        energy_scores(rbm.energy), solve=ConjugateGradient(), damping=1e-2
    )
    return fit(
        key,
        MPF(rbm.energy),
        machine(x.shape[1], 128),
        x,
        optimizer=optax.chain(metric, optax.sgd(0.5)),
        steps_per_round=10,
    ).params


def images(params: Any, x: jax.Array) -> jax.Array:
    """Convolutional energy of an image of 32 x 32 pixels."""
    first, second, last = params
    # Not a convolution of one channel: in full precision the compiler takes minutes
    # for its gradient in the filters.
    patches = x.reshape(8, 4, 8, 4).transpose(1, 3, 0, 2).reshape(16, 8, 8)
    hidden = jax.nn.softplus(jnp.einsum("fk,kij->fij", first, patches))
    hidden = jax.lax.conv_general_dilated(hidden[None], second, (1, 1), "SAME")
    return jnp.sum(x**2) / 2 + jnp.sum(jax.nn.softplus(hidden).mean((0, 2, 3)) * last)


def convolutional(key: jax.Array, x: jax.Array) -> Any:
    params = (
        jnp.full((32, 16), 0.01),
        jnp.full((64, 32, 3, 3), 0.01),
        jnp.ones(64),
    )
    objective = PersistentDivergence(
        images, HMC(0.1, num_steps=5), num_particles=128, num_moves=5
    )
    return fit(
        key,
        objective,
        params,
        x,
        optimizer=optax.adam(1e-3),
        batch_size=128,
        num_rounds=100,
        steps_per_round=1,
    ).params


def by_hand(key: jax.Array, x: jax.Array) -> Any:
    """MPF of an Ising model by a plain loop of optax: the peer of `fit_ising`."""
    size = x.shape[1]
    spins = 2 * x - 1

    def value(params):
        bias, pairs = params
        matrix = (pairs + pairs.T) * (1 - jnp.eye(size))
        gaps = -spins * (bias[None] + spins @ matrix)
        return jax.nn.logsumexp(gaps / 2) - jnp.log(float(x.size))

    solver = optax.lbfgs(memory_size=20)
    start = jnp.zeros(size), jnp.zeros((size, size))

    def step(_, carry):
        params, state = carry
        height, slope = jax.value_and_grad(value)(params)
        updates, state = solver.update(
            slope, state, params, value=height, grad=slope, value_fn=value
        )
        return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, 100, step, (start, solver.init(start)))[0]


PROGRAMS = {
    "mpf-ising": Program(
        "MPF of an Ising model, 1,000 units x 100,000 rows, 100 steps",
        partial(fit_ising, MPF),
        (Shape((100_000, 1000)),),
    ),
    "pl-ising": Program(
        "pseudolikelihood of an Ising model, 1,000 units x 100,000 rows, 100 steps",
        partial(fit_ising, PseudoLikelihood),
        (Shape((100_000, 1000)),),
    ),
    "mpf-rbm": Program(
        "MPF of an RBM, 784 x 500, 10,000 rows, 100 steps",
        partial(fit_rbm, 500),
        (Shape((10_000, 784)),),
    ),
    "mpf-rbm-200": Program(
        "MPF of an RBM, 784 x 200, 10,000 rows, 100 steps",
        partial(fit_rbm, 200),
        (Shape((10_000, 784)),),
    ),
    "grad-rbm-200": Program(
        "jax.grad(loss), MPF of an RBM, 784 x 200, 10,000 rows",
        slope_of_rbm,
        (Shape((10_000, 784)),),
    ),
    "pcd-rbm": Program(
        "PCD of an RBM, 784 x 500, 60,000 rows, batches of 1,000",
        partial(pcd_of_rbm, 500),
        (Shape((60_000, 784)),),
    ),
    "potts": Program(
        "pseudolikelihood of a Potts model, 200 sites x 21 letters, 10,000 rows",
        fit_potts,
        (Shape((10_000, 200)),),
    ),
    "hais-200": Program(
        "HAIS, 36 Student's t experts, 200 particles",
        partial(hais, 200),
        (Shape((36, 36), is_spread=False),),
    ),
    "hais-100k": Program(
        "HAIS, 36 Student's t experts, 100,000 particles",
        partial(hais, 100_000),
        (Shape((36, 36), is_spread=False),),
    ),
    "hmc": Program(
        "HMC, 10,000 chains in 36 dimensions, 10 leapfrogs, 100 draws",
        hamiltonian,
        (Shape((10_000, 36)), Shape((36, 36), False)),
    ),
    "hmc-blackjax": Program(
        "the same HMC by blackjax",
        by_blackjax,
        (Shape((10_000, 36)), Shape((36, 36), False)),
        peer=True,
    ),
    "heat-bath": Program(
        "heat bath of an Ising model, 100 units, 10,000 chains, 100 draws",
        heat_bath,
        (Shape((10_000, 100)), Shape((100,), False), Shape((4950,), False)),
    ),
    "heat-bath-1000": Program(
        "heat bath of an Ising model, 1,000 units, 1,000 chains, 100 draws",
        heat_bath,
        (Shape((1000, 1000)), Shape((1000,), False), Shape((499_500,), False)),
    ),
    "colours": Program(
        "colours of a lattice of 100 x 100 units, 100 chains, 10 draws",
        by_colours,
        (Shape((100, 10_000)), Shape((10_000,), False), Shape((20_000,), False)),
    ),
    "sandwich-rbm": Program(
        "sandwich of an RBM, 784 x 500, 1,000 particles",
        sandwich_of_rbm,
        (Shape((1000, 784)), Shape((784, 500), False)),
    ),
    "natural": Program(
        "natural gradient, 100,000 parameters, 10,000 rows, conjugate gradients",
        natural_rbm,
        (Shape((10_000, 784)),),
    ),
    "convolutional": Program(
        "PCD of a convolutional energy by HMC, 32 x 32 pixels, batches of 128",
        convolutional,
        (Shape((50_000, 32, 32)),),
    ),
    "by-hand": Program(
        "the first program by hand, with optax.lbfgs",
        by_hand,
        (Shape((100_000, 1000)),),
        peer=True,
    ),
}


class Large(NamedTuple):
    """A problem that nearly fills a chip."""

    program: Program
    num_parameters: float
    operations: float
    """Multiplications and additions of one pass over the rows, in products only."""


def _large_ising(units, rows):
    # A product for the gaps, and one for the gradient.
    return Large(
        Program(
            f"MPF of an Ising model, {units:,} units x {rows:,} rows",
            partial(fit_ising, MPF),
            (Shape((rows, units)),),
        ),
        units * (units + 1) / 2,
        4.0 * rows * units**2,
    )


def _large_potts(sites, rows):
    return Large(
        Program(
            f"pseudolikelihood of a Potts model, {sites} sites x 21 letters x "
            f"{rows:,} rows",
            fit_potts,
            (Shape((rows, sites)),),
        ),
        sites * (sites - 1) / 2 * 441 + sites * 21,
        4.0 * rows * (21 * sites) ** 2,
    )


def _large_rbm(units, rows):
    # A batch of 1,000 rows needs four products, and so do its 1,000 particles, which
    # need two more to move.
    return Large(
        Program(
            f"PCD of an RBM, {units:,} x {units:,} x {rows:,} rows",
            partial(pcd_of_rbm, units),
            (Shape((rows, units)),),
        ),
        float(units) ** 2,
        20.0 * rows * units**2,
    )


LARGE = {
    "large-ising": _large_ising(8000, 50_000),
    "large-potts": _large_potts(400, 10_000),
    "large-rbm": _large_rbm(24_576, 50_000),
}
PROGRAMS |= {name: large.program for name, large in LARGE.items()}
