"""Pairwise models of real spikes: 40,000 words of 15 and of 50 neurons.

`--data` names a folder with `spikes_maxent15.npz` and `spikes_maxent50.npz` (Maoz and
Schneidman's maxent toolbox). With 15 neurons every likelihood is a sum over all states,
see `spikes_exact`. With 50 neurons, models learned from the neighbourhood of the data
fail far from it, where most neurons fire at once, and only models learned by sampling
are right. Blocks of 500 bins alternate: every fourth is held out, and no setting was
chosen on them.

Reference: Schneidman, Berry, Segev and Bialek, Nature 440, 1007 (2006); Rostami,
Porta Mana, Gruen and Helias, PLoS Computational Biology 13, e1005762 (2017), for the
second mode; Maoz, Tkacik, Esteki, Kiani and Schneidman, PNAS 117, 25066 (2020), for the
recordings.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import spikes_kinetic
from benchmarks.harness import Options, Table
from benchmarks.spikes_exact import exact_losses, silent_pairs
from benchmarks.spikes_information import few_neurons, many_neurons
from benchmarks.spikes_judged import Recording, figure, judged, learn_all
from benchmarks.spikes_scale import simulated, subsets
from probjax import plots

BLOCK = 500


def run(options: Options) -> Iterator[Table]:
    if options.data is None:
        raise SystemExit("spikes needs --data, a folder that holds spikes_maxent15.npz")
    plots.load_pyplot()
    few, many = (read(options.data / f"spikes_maxent{n}.npz") for n in (15, 50))
    yield exact_losses(options, few)
    if not options.quick:
        yield silent_pairs(options, {"15": few, "50": many})
    recording = split(many)
    yield few_neurons(options, few)
    models = learn_all(options, recording)
    yield judged(models, recording)
    yield subsets(options, recording.train)
    yield many_neurons(options, recording.train)
    yield simulated(options)
    yield spikes_kinetic.run(options)
    figure(models, recording)


def read(path: Path) -> np.ndarray:
    with np.load(path) as file:
        bits = np.unpackbits(file["packed"], axis=1)[:, : file["shape"][1]]
    return bits.astype(np.float32)


def split(x: np.ndarray) -> Recording:
    """Rows to learn from, and every fourth block of rows to be judged by."""
    held_out = np.arange(len(x)) // BLOCK % 4 == 3
    return Recording(x[~held_out], x[held_out])
