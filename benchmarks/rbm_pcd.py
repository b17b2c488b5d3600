"""A restricted Boltzmann machine of digits by persistent divergence, and how likely.

784 x 500 units learn 10,000 digits, whose grey levels are drawn as bits anew whenever
they are seen. Beside it stands CD25(500) of Salakhutdinov and Murray, which learned
from 60,000, judged in the same run, the same way, by the same test digits.

Needs --data DIR with mnist10k.npz and rbm_cd25_500.npz.

Reference: Tieleman, ICML 2008; Salakhutdinov and Murray, "On the quantitative analysis
of deep belief networks", ICML 2008: log Z 451.28, test -86.34 nats.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

from benchmarks import rbm_logz
from benchmarks.harness import Options, Table, timed
from benchmarks.machine_brackets import bracket
from probjax import L2, PersistentDivergence, fit, log_likelihood, plots, rbm, sample
from probjax.data import GreyLevels, datasets, preprocessing
from probjax.objectives import Corrupted

FIGURE = Path("out/rbm-pcd.png")
NUM_HIDDEN, NUM_PARTICLES = 500, 200
BATCH, RATE, DECAY = 100, 0.05, 5e-5
SIDE = 28


def run(options: Options) -> Iterator[Table]:
    if options.data is None:
        raise SystemExit(
            "rbm-pcd needs --data DIR with mnist10k.npz and rbm_cd25_500.npz"
        )
    plots.load_pyplot()
    epochs, particles, steps = (3, 50, 500) if options.quick else (150, 500, 7000)
    grey = jnp.asarray(datasets.digits(options.data).train).reshape(-1, SIDE**2)
    params, seconds = timed(lambda: learn(grey, epochs))
    public = rbm_logz.load(options.data / "rbm_cd25_500.npz")
    # That machine has the pixels of a digit column by column.
    turned = jnp.arange(SIDE**2).reshape(SIDE, SIDE).T.ravel()
    test = public.test[:, turned]
    train = preprocessing.binarise_randomly(jax.random.key(2), grey)
    judge = partial(judged, test=test, num_particles=particles, num_steps=steps)
    rows = [
        judge("PCD(500), 10,000 digits", params, train=train),
        judge("CD25(500), 60,000", _turned(public.params, turned)),
    ]
    yield Table(
        f"{NUM_HIDDEN} hidden units, {epochs} passes, test digits in nats",
        ("machine", "value", "lower", "upper", "training digits", "log Z", "published"),
        [(*row, known) for row, known in zip(rows, ("", rbm_logz.TEST), strict=True)],
        f"Learned in {seconds:.0f} s, compiling included; {particles} particles each "
        f"way, {steps:,} distributions.",
    )
    draw(params, test)


def learn(grey: jax.Array, epochs: int) -> rbm.Params:
    init_key, bits_key, fit_key = jax.random.split(jax.random.key(0), 3)
    bits = preprocessing.binarise_randomly(bits_key, grey)
    start = rbm.init(init_key, SIDE**2, NUM_HIDDEN, data=bits)
    num_steps = epochs * len(grey) // BATCH
    particles = PersistentDivergence(
        rbm.energy, sampler=rbm.BlockGibbs(), num_particles=NUM_PARTICLES
    )
    return fit(
        fit_key,
        Corrupted(particles, GreyLevels()),
        start,
        grey,
        optimizer=optax.sgd(optax.linear_schedule(RATE, 0.0, num_steps)),
        penalty=L2(DECAY, weights=rbm.weights_only(start)),
        chart=rbm.centred(start, bits),
        batch_size=BATCH,
        num_rounds=num_steps,
        steps_per_round=1,
    ).params


def judged(
    name: str,
    params: rbm.Params,
    *,
    test: jax.Array,
    train: jax.Array | None = None,
    num_particles: int,
    num_steps: int,
) -> tuple:
    found = bracket(
        jax.random.key(1),
        params,
        test,
        num_particles=num_particles,
        num_steps=num_steps,
    )
    of_test = log_likelihood(rbm.energy, params, test, found)
    of_train = ""
    if train is not None:
        of_train = log_likelihood(rbm.energy, params, train, found).value
    return (name, of_test.value, of_test.lower, of_test.upper, of_train, found.log_z)


def _turned(params, order):
    return params._replace(
        weight=params.weight[order], visible_bias=params.visible_bias[order]
    )


def draw(params: rbm.Params, test: jax.Array) -> None:
    """Chains from test digits, one a row, with 1,000 steps between samples."""
    draws = sample(
        jax.random.key(3),
        rbm.energy,
        params,
        test[:: len(test) // 10][:10],
        sampler=rbm.BlockGibbs(),
        num_draws=10,
        thin=1000,
    )
    means = jax.vmap(jax.vmap(rbm.reconstruct, (None, 0)), (None, 0))(params, draws.x)
    ax = plots.images(means.reshape(-1, SIDE**2), num_columns=10)
    FIGURE.parent.mkdir(exist_ok=True)
    ax.figure.savefig(FIGURE, dpi=150)
