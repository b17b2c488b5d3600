"""Ways to learn a small RBM, judged by the exact divergence from the truth.

Machines of 10 x 10 units, with normal weights of standard deviation 1.5 and biases that
leave each unit about as often on as off. Each method learns from the same rows, drawn
exactly, from the same start. What is measured is KL(truth || learned) over all 2^10
states: by how many nats a row the learned machine's expected log-likelihood falls short
of the truth's. Exact maximum likelihood is the yardstick.

Weight decay is L2 on weights alone. As losses have different scales, so have strengths
that suit them: each method has all of `STRENGTHS`, and for each machine that with the
best exact likelihood of as many other rows. The flow, pseudolikelihood and likelihood
are descended by L-BFGS, which is ended after `STEPS`; contrastive divergence by Adam,
one step of all rows a round, with a rate that falls to zero.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import Options, Table, timed
from probjax import (
    L2,
    MPF,
    ContrastiveDivergence,
    MaximumLikelihood,
    PseudoLikelihood,
    exact,
    fit,
    rbm,
)

UNITS, SCALE, ROWS = 10, 1.5, 1000
STRENGTHS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3)
STEPS, ROUNDS, RATE = 500, 1000, 0.03
ADAM = optax.adam(optax.cosine_decay_schedule(RATE, ROUNDS))
YARDSTICK = "maximum likelihood"


def run(options: Options) -> Iterator[Table]:
    num_seeds, strengths = (20, STRENGTHS) if not options.quick else (4, STRENGTHS[::2])
    keys = jax.random.split(jax.random.key(0), num_seeds)
    tasks = jax.jit(jax.vmap(task))(keys)
    found = {
        name: learned(method, strengths, keys, tasks)
        for name, method in METHODS.items()
    }
    note = f"Independent units: {independent_gaps(tasks.log_p).mean():.3f} nats."
    yield by_strength(found, strengths, note)
    plain = {name: all_of.gaps[0] for name, all_of in found.items()}
    yield compared("No weight decay", plain, found)
    yield compared("Weight decay chosen on other rows", chosen(found), found)


class Task(NamedTuple):
    """What there is to learn."""

    log_p: jax.Array
    """Of all states of the true machine."""
    x: jax.Array
    """Rows drawn from it."""
    others: jax.Array
    """And as many to choose by."""
    start: rbm.Params


class Found(NamedTuple):
    """What a method came to, `(strength, machine)`."""

    gaps: np.ndarray
    """KL(truth || learned)."""
    scores: np.ndarray
    """Mean log-likelihood of other rows."""
    largest: np.ndarray
    """The largest absolute weight."""
    seconds: float
    """Of a fit, without compiling."""


def truth(key) -> rbm.Params:
    """A machine whose layers are about as often on as off."""
    keys = jax.random.split(key, 3)
    weight = SCALE * jax.random.normal(keys[0], (UNITS, UNITS))
    visible = jax.random.normal(keys[1], (UNITS,)) / 2 - weight.sum(1) / 2
    hidden = jax.random.normal(keys[2], (UNITS,)) / 2 - weight.sum(0) / 2
    return rbm.Params(weight, visible, hidden)


def task(key) -> Task:
    truth_key, rows_key, start_key = jax.random.split(key, 3)
    log_p = log_probs(truth(truth_key))
    places = jax.random.categorical(rows_key, log_p, shape=(2, ROWS))
    x, others = exact.states(UNITS)[places]
    start = rbm.init(start_key, UNITS, UNITS, scale=0.1, data=x)
    return Task(log_p, x, others, start)


def log_probs(params):
    return exact.log_probs(rbm.energy, params, UNITS)


def by_newton(objective, strength, key, x, start):
    decay = L2(strength, weights=rbm.weights_only(start))
    return fit(key, objective, start, x, penalty=decay, steps_per_round=STEPS).params


def by_contrast(num_moves, strength, key, x, start):
    objective = ContrastiveDivergence(rbm.energy, rbm.BlockGibbs(), num_moves)
    return fit(
        key,
        objective,
        start,
        x,
        penalty=L2(strength, weights=rbm.weights_only(start)),
        optimizer=ADAM,
        num_rounds=ROUNDS,
        steps_per_round=1,
    ).params


METHODS = {
    YARDSTICK: partial(by_newton, MaximumLikelihood(rbm.energy, rbm.log_z)),
    "MPF": partial(by_newton, MPF(rbm.energy)),
    "pseudolikelihood": partial(by_newton, PseudoLikelihood(rbm.energy)),
    "CD-1": partial(by_contrast, 1),
    "CD-10": partial(by_contrast, 10),
}


def learned(method, strengths, keys, tasks) -> Found:
    # One after the other: together, every fit would pay for all ways to the gaps.
    @jax.jit
    def learn(strength, keys, tasks):
        def one(given):
            key, mine = given
            params = method(strength, key, mine.x, mine.start)
            log_q = log_probs(params)
            energies = jax.vmap(rbm.energy, (None, 0))(params, mine.others)
            score = -energies.mean() - rbm.log_z(params)
            return exact.kl(mine.log_p, log_q), score, jnp.abs(params.weight).max()

        return jax.lax.map(one, (keys, tasks))

    compiled = learn.lower(strengths[0], keys, tasks).compile()
    runs = [timed(compiled, strength, keys, tasks) for strength in strengths]
    gaps, scores, largest = map(np.array, zip(*(run for run, _ in runs), strict=True))
    seconds = sum(seconds for _, seconds in runs) / (len(runs) * len(keys))
    return Found(gaps, scores, largest, seconds)


def chosen(found):
    """The gaps at the strength that is best on other rows, machine by machine."""
    return {
        name: np.take_along_axis(all_of.gaps, all_of.scores.argmax(0)[None], 0)[0]
        for name, all_of in found.items()
    }


def independent_gaps(log_p):
    """The gap of the best machine without weights."""
    p = np.exp(np.asarray(log_p, float))
    on = p @ np.asarray(exact.states(UNITS))
    entropies = -(on * np.log(on) + (1 - on) * np.log1p(-on)).sum(1)
    return entropies + np.sum(p * np.asarray(log_p), axis=1)


def by_strength(found, strengths, note) -> Table:
    return Table(
        f"Gap to the truth in nats / median of the largest |W|, {ROWS:,} rows",
        ("method", *(f"decay {strength:g}" for strength in strengths)),
        [
            (
                name,
                *(
                    f"{gaps.mean():.3f} / {np.median(largest):.1f}"
                    for gaps, largest in zip(own.gaps, own.largest, strict=True)
                ),
            )
            for name, own in found.items()
        ],
        note,
    )


def compared(title, gaps, found) -> Table:
    def written(values):
        error = values.std(ddof=1) / np.sqrt(len(values))
        return f"{values.mean():.4f} +- {error:.4f}"

    return Table(
        f"{title}, {len(gaps[YARDSTICK])} machines",
        ("method", "gap, nats", "less ML's", "less CD-10's", "worst", "s a fit"),
        [
            (
                name,
                written(own),
                written(own - gaps[YARDSTICK]),
                written(own - gaps["CD-10"]),
                own.max(),
                found[name].seconds,
            )
            for name, own in gaps.items()
        ],
        "Errors are over machines, of differences machine by machine.",
    )
