"""Restricted Boltzmann machines by PCD-1, beside scikit-learn's BernoulliRBM.

Both go on from the same chains from batch to batch, one for every row of it, at the
same rate and from weights as small. Of 15 hidden units log Z is a sum, so that what was
learned of scikit-learn's digits (8 x 8 pixels, on or off) is judged exactly. Of 784 x
200 units only the time is compared.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import rbm_cost
from benchmarks.harness import Options, Table
from benchmarks.rbm_cost import BATCH
from benchmarks.side_by_side import OURS, Job, Judged, Program, side_by_side
from probjax import PersistentDivergence, fit, rbm

HIDDEN, RATE, SCALE = 15, 0.05, 0.01
NUM_TRAIN = 1700
SGD = optax.sgd(RATE)


def run(options: Options) -> Iterator[Table]:
    num_epochs = 10 if options.quick else 100
    settings = f"{num_epochs} epochs of {NUM_TRAIN:,} rows, batches of {BATCH}, {RATE}"
    programs = [
        Program("probjax PCD-1", OURS, partial(ours, num_epochs), settings),
        Program(
            "scikit-learn BernoulliRBM",
            "scikit-learn",
            partial(by_sklearn, num_epochs),
            f"{settings}; one thread",
        ),
    ]
    yield side_by_side(small_job(num_epochs), programs, 3 if options.quick else 9)
    yield large(options)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from and the rest."""
    from sklearn.datasets import load_digits

    grey = np.asarray(load_digits(return_X_y=True)[0])
    x = (grey > 7.5).astype(np.float32)
    x = x[np.random.default_rng(0).permutation(len(x))]
    return x[:NUM_TRAIN], x[NUM_TRAIN:]


def small_job(num_epochs: int) -> Job:
    def judge(found: list[rbm.Params], seconds: float) -> Judged:
        both = np.array([[float(mean_log_prob(p, x)) for x in digits()] for p in found])
        error = both.std(0, ddof=1) / np.sqrt(len(both))
        per_epoch = 1e3 * seconds / num_epochs
        cells = (per_epoch, both[:, 0].mean(), error[0], both[:, 1].mean(), error[1])
        return Judged(1.0, tuple(map(float, cells)))

    return Job(
        f"An RBM of 64 x {HIDDEN} units, {num_epochs} epochs of digits",
        "time, of the first",
        ("ms an epoch", "log p, learned from", "+-", "log p, others", "its +-"),
        judge,
        "Exact mean log-likelihoods in nats, of rows learned from and of the others; "
        "errors over keys, one for every turn. Seconds after compiling, checks of the "
        "data are in them.",
    )


@jax.jit
def mean_log_prob(params: rbm.Params, x: Any) -> jax.Array:
    return -jax.vmap(rbm.energy, (None, 0))(params, x).mean() - rbm.log_z(params)


def ours(num_epochs: int):
    x, _ = digits()
    objective = PersistentDivergence(rbm.energy, rbm.BlockGibbs(), num_particles=BATCH)

    def call(turn):
        start_key, key = jax.random.split(jax.random.key(turn))
        return fit(
            key,
            objective,
            rbm.init(start_key, x.shape[1], HIDDEN, scale=SCALE),
            x,
            optimizer=SGD,
            batch_size=BATCH,
            num_rounds=num_epochs * len(x) // BATCH,
            steps_per_round=1,
        ).params

    return call


def by_sklearn(num_epochs: int):
    from sklearn.neural_network import BernoulliRBM
    from threadpoolctl import threadpool_limits

    x, _ = digits()

    def call(turn):
        machine = BernoulliRBM(
            HIDDEN,
            learning_rate=RATE,
            batch_size=BATCH,
            n_iter=num_epochs,
            random_state=turn,
        )
        with threadpool_limits(1):
            machine.fit(x)
        return rbm.Params(
            jnp.asarray(machine.components_.T),
            jnp.asarray(machine.intercept_visible_),
            jnp.asarray(machine.intercept_hidden_),
        )

    return call


def large(options: Options) -> Table:
    x = rbm_cost.rows_of_bits(options.data)
    kept = PersistentDivergence(rbm.energy, rbm.BlockGibbs(), num_particles=BATCH)
    settings = f"batches of {BATCH}, rate {rbm_cost.RATE}"

    def every_turn(call):
        return lambda turn: call()

    programs = [
        Program(
            "probjax PCD-1",
            OURS,
            lambda: every_turn(partial(rbm_cost.epoch, kept, x)),
            settings,
        ),
        Program(
            "scikit-learn BernoulliRBM",
            "scikit-learn",
            lambda: every_turn(rbm_cost.peer(x, 1)),
            f"{settings}; one thread",
        ),
    ]
    size = f"{rbm_cost.VISIBLE} x {rbm_cost.HIDDEN}"
    job = Job(
        f"An epoch of an RBM of {size} units, {len(x):,} rows",
        "time, of the first",
        (),
        lambda found, seconds: Judged(1.0, ()),
        "Too large for an exact log-likelihood: for quality see the smaller machine. "
        "scikit-learn is at its best with one thread, see `rbm-cost`.",
    )
    return side_by_side(job, programs, 2 if options.quick else 7)
