"""Fingerprints that a Hopfield network learns from corrupted versions alone.

80 binary fingerprints of 64 x 64 pixels, a network of 4,096 units, and versions with
30 % of their bits flipped, drawn anew for every step: minimum probability flow never
sees an original. Between steps these are looked at for the record, whether they have
become fixed points, and nothing hangs on it.

With --data DIR the fingers are those of fingerprints80.npz; without, ridges grown from
noise along the flow lines of a core and a delta.

Reference: thesis, "Memory Storage in a Hopfield Network", "Experimental Results", its
figure of fingerprints.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import Options, Table
from probjax import MPF, Watch, fit, hopfield, plots
from probjax.data import FixedFlips
from probjax.objectives import Corrupted

FIGURE = Path("out/fingerprints.png")
LEARNED, STARTED = 0.3, 0.4
ROUNDS, VERSIONS, RATE, LOOK = 240, 8, 1e-3, 20
# Of ridges: in pixels, and of a band in waves to the pixel.
PERIOD, WIDTH = 6.0, 0.03
NUM_ANGLES, NUM_PASSES = 16, 8


class Taught(NamedTuple):
    """A network, and how it came to be."""

    params: hopfield.Params
    history: list[tuple[int, float, int]]
    """Rounds, the share of bits that an update leaves right, and patterns fixed."""
    seconds: float


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    prints = load(options)
    x = jnp.asarray(prints.reshape(len(prints), -1), jnp.float32)
    taught = teach(x)
    yield course(taught, len(x))
    yield remembered(taught, x)
    draw(taught.params, x, prints.shape[1:])


def load(options: Options) -> np.ndarray:
    if options.quick:
        return ridges(20, 32)
    if options.data is None:
        return ridges(80, 64)
    with np.load(options.data / "fingerprints80.npz") as stored:
        return np.unpackbits(stored["packed"], axis=1).reshape(stored["shape"])


def ridges(count: int, side: int) -> np.ndarray:
    """Images like fingerprints: noise, filtered again and again along its field."""
    random = np.random.default_rng(0)
    waves = np.stack(np.meshgrid(*2 * [np.fft.fftfreq(side)], indexing="ij"))
    turns = np.pi * np.arange(NUM_ANGLES) / NUM_ANGLES
    across = np.stack([np.cos(turns), -np.sin(turns)], 1) / PERIOD
    # Both signs of a wave, so that what passes is real.
    apart = waves - np.stack([across, -across])[..., None, None]
    bands = np.exp(-((apart / WIDTH) ** 2).sum(2) / 2).sum(0)
    where = np.mgrid[:side, :side] / side - 0.5
    return np.stack([_ridge(random, where, bands) for _ in range(count)])


def _ridge(random, where, bands):
    centres = np.array([[-0.1, 0.0], [0.35, 0.3]]) + random.normal(0, 0.1, (2, 2))
    centres[:, 1] *= random.choice([-1, 1])
    core, delta = (np.arctan2(*(where - c[:, None, None])) for c in centres)
    # Sherlock and Monro: half a turn about the core, half a turn back about the delta.
    field = (core - delta) / 2 + random.normal(0, 0.3)
    nearest = np.rint(field / np.pi * NUM_ANGLES).astype(int) % NUM_ANGLES
    image = random.normal(size=where.shape[1:])
    for _ in range(NUM_PASSES):
        filtered = np.fft.ifft2(np.fft.fft2(image) * bands).real
        image = np.take_along_axis(filtered, nearest[None], 0)[0]
        image = np.tanh(2 * image / image.std())
    return (image > np.median(image)).astype(np.uint8)


def teach(x: jax.Array) -> Taught:
    size = x.shape[1]
    history = []

    def look(progress):
        right = jax.vmap(hopfield.flip_gaps, (None, 0))(progress.params, x) < 0
        fixed = int(right.all(1).sum())
        history.append((int(progress.step), float(right.mean()), fixed))

    init_key, fit_key = jax.random.split(jax.random.key(0))
    rate = optax.cosine_decay_schedule(RATE, ROUNDS)
    begun = time.perf_counter()
    found = fit(
        fit_key,
        Corrupted(MPF(hopfield.energy), FixedFlips(int(LEARNED * size))),
        hopfield.init(init_key, size),
        jnp.repeat(x, VERSIONS, axis=0),
        optimizer=optax.adam(rate),
        num_rounds=ROUNDS,
        steps_per_round=1,
        watch=Watch(look, every=LOOK),
    )
    params = jax.block_until_ready(found.params)
    taken = time.perf_counter() - begun
    return Taught(params, history, taken)


def course(taught: Taught, count: int) -> Table:
    return Table(
        f"{count} patterns in {len(taught.params.threshold):,} units: learning",
        ("round", "versions seen", "bits right", "patterns fixed"),
        [(n, f"{n * VERSIONS * count:,}", f"{b:.4%}", f) for n, b, f in taught.history],
        f"A round is one step of Adam on {VERSIONS} new versions of each pattern, with "
        f"{LEARNED:.0%} of the bits flipped. Bits right: the share of the originals' "
        "that an update would leave. Known: .92 s for the objective and its gradient "
        "on 1,000 versions; from 4,000 versions 99.7 % of bits and no pattern.",
    )


def remembered(taught: Taught, x: jax.Array) -> Table:
    starts = {0: x}
    for share in (LEARNED, STARTED):
        flips = int(share * x.shape[1])
        starts[flips] = FixedFlips(flips)(jax.random.key(1), x)
    rows = []
    for flips, start in starts.items():
        found = hopfield.recall(taught.params, start)
        right = found.x == x
        exact = int(right.all(1).sum())
        bits = float(right.mean())
        rows.append((f"{flips:,}", exact, f"{bits:.4%}", int(found.num_sweeps)))
    return Table(
        f"{len(x)} patterns in {x.shape[1]:,} units: what comes back",
        ("flipped bits", "exactly", "bits right", "sweeps"),
        rows,
        f"Learned in {ROUNDS} rounds from {ROUNDS * VERSIONS * len(x):,} versions, "
        f"{taught.seconds:.0f} s, compiling and looks at the originals included. At "
        f"most {peak_memory():.2f} GB were held. Target: all, under 8 GB.",
    )


def peak_memory() -> float:
    """The most gigabytes this process has held; NaN where nobody tells."""
    status = Path("/proc/self/status")
    if not status.exists():
        return np.nan
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**20


def draw(params: hopfield.Params, x: jax.Array, shape: tuple[int, ...]) -> None:
    few = x[jnp.array([0, len(x) // 2])]
    learn_key, start_key = jax.random.split(jax.random.key(2))
    learned, started = (
        FixedFlips(int(share * x.shape[1])) for share in (LEARNED, STARTED)
    )
    start = started(start_key, few)
    columns = {
        "original": few,
        f"learned from, {LEARNED:.0%}": learned(learn_key, few),
        f"start, {STARTED:.0%}": start,
        "after one sweep": hopfield.sweep(params, start),
        "converged": hopfield.recall(params, start).x,
    }
    figure, axes = plots.load_pyplot().subplots(
        2, len(columns), figsize=(10, 4.3), layout="constrained"
    )
    for column, (name, states) in zip(axes.T, columns.items(), strict=True):
        column[0].set_title(name)
        for ax, state in zip(column, states, strict=True):
            ax.imshow(np.reshape(state, shape), cmap="gray_r")
            ax.set_xticks([])
            ax.set_yticks([])
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
