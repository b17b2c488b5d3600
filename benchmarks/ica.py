"""Independent components of natural images, by likelihood and by persistent MPF.

Filters J of p(x) proportional to exp(-sum_k |J_k x|) are learned from white 10 x 10
patches twice, from the same start: by the exact likelihood, whose partition function is
known, and by persistent minimum probability flow, which is told nothing of it.

The start are orthogonal filters, from Gaussian noise: white data have no directions
that are larger than others, but noise has, which either way takes long to unlearn.

With --data DIR the images are those of natural_images.npz; without, scikit-learn's two
photographs.

Reference: thesis, "Independent Component Analysis", its figure of receptive fields.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table, timed
from benchmarks.image_fits import Patches, load
from probjax import HMC, Fit, MaximumLikelihood, PersistentMPF, fit, ica, plots
from probjax.data import preprocessing
from probjax.fitting import GradientNorm

FIGURE = Path("out/ica.png")
SIZE = 10
STEPS = 10
LIKELIHOOD, FLOW = "maximum likelihood", "persistent MPF"
PUBLISHED = {LIKELIHOOD: -120.33, FLOW: -120.61}


class Learned(NamedTuple):
    """A fit and the seconds that it took, compiling included."""

    fit: Fit
    seconds: float


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    count, rounds = (10_000, 30) if options.quick else (100_000, 100)
    data = load(
        options, size=SIZE, num_components=None, num_patches=count, num_test=count
    )
    learned = learn(data, rounds)
    yield table(data, learned)
    draw(data, learned)


def learn(data: Patches, num_rounds: int) -> dict[str, Learned]:
    start_key, fit_key = jax.random.split(jax.random.key(1))
    start = ica.init(start_key, SIZE**2)
    start = start._replace(filters=jnp.linalg.qr(start.filters)[0])
    exactly = MaximumLikelihood(ica.energy, log_z=ica.log_z)
    # Where |u| turns, gradients of finite data have no zero: a mean over rows comes to
    # about one row's share.
    stop = GradientNorm(10 / len(data.train))
    flow = PersistentMPF(ica.energy, sampler=HMC(0.2, num_steps=3), num_moves=5)
    return {
        LIKELIHOOD: Learned(
            *timed(lambda: fit(fit_key, exactly, start, data.train, stop=stop))
        ),
        FLOW: Learned(
            *timed(
                lambda: fit(
                    fit_key,
                    flow,
                    start,
                    data.train,
                    num_rounds=num_rounds,
                    steps_per_round=STEPS,
                )
            )
        ),
    }


def likelihood(params: ica.Params, x: jax.Array) -> float:
    return float(jax.vmap(ica.log_likelihood, (None, 0))(params, x).mean())


def table(data: Patches, learned: dict[str, Learned]) -> Table:
    best = likelihood(learned[LIKELIHOOD].fit.params, data.train)
    rows = []
    for name, (found, seconds) in learned.items():
        train = likelihood(found.params, data.train)
        test = likelihood(found.params, data.test)
        steps = len(found.losses)
        rows.append((name, train, best - train, test, PUBLISHED[name], steps, seconds))
    apart = ica.amari_distance(*(one.fit.params.filters for one in learned.values()))
    particles = learned[FLOW].fit.context.shared
    return Table(
        f"{SIZE} x {SIZE} filters of {len(data.train):,} white patches",
        ("by", "nats, train", "behind", "nats, test", "thesis", "steps", "seconds"),
        rows,
        "Mean log-likelihoods. The thesis' patches were others: compare differences "
        "only, within .3 nats. Amari distance of the filters from each other: "
        f"{float(apart):.3f}. Particles in the end: {float(particles.accept):.0%} of "
        f"proposals accepted, {float(particles.ess):,.0f} effective, effective age "
        f"{float(particles.age):.0f} moves.",
    )


def draw(data: Patches, learned: dict[str, Learned]) -> None:
    figure, axes = plots.load_pyplot().subplots(
        1, 2, figsize=(9, 4.8), layout="constrained"
    )
    first, second = (learned[name].fit.params.filters for name in (LIKELIHOOD, FLOW))
    # In the order, and of the sign, of what they are most like in the first set.
    alike = np.asarray(_unit(first) @ _unit(second).T)
    found, order = _matched(alike)
    turned = second[order] * np.sign(alike[found, order])[:, None]
    shown = (first[found], turned)
    for ax, name, filters in zip(axes, learned, shown, strict=True):
        plots.receptive_fields(
            preprocessing.pixel_filters(data.whitening, filters), ax=ax
        )
        ax.set_title(name)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)


def _unit(rows):
    return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


def _matched(alike):
    """Pairs of rows and columns, most alike first, each once."""
    left = np.abs(alike)
    pairs = []
    for _ in range(len(left)):
        row, column = np.unravel_index(left.argmax(), left.shape)
        pairs.append((row, column))
        left[row], left[:, column] = -1, -1
    return tuple(np.array(pairs).T)
