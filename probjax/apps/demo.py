"""The first minute: a spin glass is drawn, forgotten, and learned back from its states.

20,000 exact states of a 10x10 spin glass are fitted by minimum probability flow and by
pseudolikelihood, neither of which needs the partition function. Because the truth and
the fits are lattices, everything about them can also be computed exactly, and is.

Reference: thesis, "Two Dimensional Ising Spin Glass".
"""

import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from probjax import exact, plots
from probjax.apps.commands import say
from probjax.fitting.fit import fit
from probjax.models import ising
from probjax.objectives.flow import MPF
from probjax.objectives.pseudolikelihood import PseudoLikelihood
from probjax.types import Array

SHAPE, NUM_STATES, VARIANCE = (10, 10), 20_000, 2.5


class Outcome(NamedTuple):
    """How far one fit is from the truth."""

    name: str
    matrix: Array
    """The couplings learned."""
    correlation: np.ndarray
    """The correlations of the fitted model, exact."""
    coupling_error: float
    """Mean square over the entries of J."""
    correlation_error: float
    """Mean square over pairs."""
    divergence: float
    """KL(truth || fit) in nats per state, exact."""
    log_likelihood: float
    """Nats per state on states that were not fitted."""
    seconds: float
    """Of fitting, after compiling."""


def run(folder: Path) -> Path:
    """Print the table, draw the figure in `folder` and say where it is."""
    plots.load_pyplot()
    say(
        f"drawing {2 * NUM_STATES:,} exact states of a 10x10 spin glass, of which half "
        "are held out ..."
    )
    glass_key, state_key, fit_key = jax.random.split(jax.random.key(0), 3)
    truth = exact.lattice.spin_glass(glass_key, SHAPE, variance=VARIANCE)
    draws = exact.lattice.sample(
        state_key, truth, SHAPE, num_draws=2 * NUM_STATES, periodic=True
    )
    train, test = draws[:NUM_STATES], draws[NUM_STATES:]
    moments = exact.lattice.moments(truth, SHAPE, periodic=True)
    say("compiling, learning it back, and comparing with the truth exactly ...")
    objectives = {
        "MPF": MPF(ising.energy),
        "pseudolikelihood": PseudoLikelihood(ising.energy),
    }
    outcomes = [
        _judge(name, *_learn(fit_key, objective, train), truth, moments, test)
        for name, objective in objectives.items()
    ]
    _print_table(outcomes, float(_log_likelihood(truth, test)))
    path = _draw(folder, np.asarray(truth), moments, outcomes)
    print(f"\nFigure: {path}")
    return path


def _learn(key, objective, data):
    """The couplings on the lattice's edges, and the seconds a second fit takes."""
    edges = exact.lattice.edges(SHAPE, periodic=True)
    start = ising.init(key, data.shape[1], edges=edges)
    learn = partial(fit, key, objective, start, data, chart=ising.centred(data))
    jax.block_until_ready(learn())
    before = time.perf_counter()
    found = jax.block_until_ready(learn())
    return ising.coupling_matrix(found.params), time.perf_counter() - before


def _judge(name, matrix, seconds, truth, moments, test):
    learned = exact.lattice.moments(matrix, SHAPE, periodic=True)
    divergence = exact.lattice.kl(truth, matrix, SHAPE, periodic=True)
    wanted, found = correlation(moments), correlation(learned)
    pairs = np.triu_indices(len(truth), 1)
    return Outcome(
        name,
        matrix,
        found,
        float(np.mean(np.square(np.asarray(matrix - truth)))),
        float(np.mean(np.square(found - wanted)[pairs])),
        float(divergence),
        float(_log_likelihood(matrix, test)),
        seconds,
    )


def _log_z(matrix):
    return float(exact.lattice.log_z(matrix, SHAPE, periodic=True))


def _log_likelihood(matrix, states):
    params = ising.from_matrix(matrix)
    energies = jax.vmap(ising.energy, (None, 0))(params, states)
    return -energies.mean() - _log_z(matrix)


def correlation(moments: exact.Moments) -> np.ndarray:
    """Pearson correlations from first and second moments."""
    mean, second = np.asarray(moments.mean), np.asarray(moments.second)
    covariance = second - np.outer(mean, mean)
    scale = np.sqrt(np.diag(covariance))
    return covariance / np.outer(scale, scale)


def _print_table(outcomes, best):
    head = f"{'':22}{'error in J':>12}{'in corr.':>12}{'KL, nats':>12}"
    print(f"\n{head}{'held-out log p':>16}{'seconds':>10}")
    for found in outcomes:
        print(
            f"{found.name:22}{found.coupling_error:12.2g}{found.correlation_error:12.2g}"
            f"{found.divergence:12.2g}{found.log_likelihood:16.4f}{found.seconds:10.2f}"
        )
    print(f"{'the truth':22}{0:12}{0:12}{0:12}{best:16.4f}")
    print(f"{'thesis, MPF':22}{0.0172:12}{0.0025:12}{'':28}{'60':>10}")
    print(f"{'thesis, pseudolik.':22}{0.0582:12}{0.0036:12}{'':28}{'800':>10}")
    print(
        "\nErrors are mean squares. These fits know which pairs are neighbours; their"
        "\nstates are exact and independent, the thesis' came from a Markov chain."
        "\nAll pairs are fitted by `python -m benchmarks mpf-cost`."
    )


def _draw(folder, truth, moments, outcomes):
    pyplot = plots.load_pyplot()
    pyplot.switch_backend("Agg")
    figure, axes = pyplot.subplots(
        1, 4, figsize=(13, 3.4), layout="constrained", width_ratios=(1.15, 1, 1, 1)
    )
    # Room between what colours mean and the next panel.
    figure.get_layout_engine().set(wspace=0.08)
    lattice, couplings, *rest = axes
    _draw_lattice(lattice, truth)
    edges = np.nonzero(np.triu(truth, 1))
    pairs = np.triu_indices(len(truth), 1)
    wanted = correlation(moments)[pairs]
    # Fits that agree lie on each other: a small mark shows on a large one, and among
    # thousands nothing does, so that correlations have a panel to a fit.
    styles = ((plots.BLUE, "o", 28), (plots.ORANGE, "^", 8))
    for found, (color, marker, size), ax in zip(outcomes, styles, rest, strict=True):
        style = {"label": found.name, "color": color, "marker": marker}
        learned = np.asarray(found.matrix)[edges]
        plots.agreement(truth[edges], learned, ax=couplings, size=size, **style)
        plots.agreement(wanted, found.correlation[pairs], ax=ax, size=3, **style)
        ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        ax.set(xlabel=f"true correlation of {len(wanted):,} pairs")
        ax.set(ylabel="learned correlation", title=f"by {found.name}")
    couplings.set(xlabel="true coupling", ylabel="learned coupling")
    couplings.set_title(f"Couplings, from {NUM_STATES:,} states")
    couplings.legend(frameon=False, handletextpad=0.2, borderaxespad=0)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "spin-glass.png"
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path.resolve()


def _draw_lattice(ax, truth):
    """The true couplings where they are, but for those around the torus."""
    places = np.argwhere(np.ones(SHAPE))
    apart = np.abs(places[:, None] - places[None]).sum(axis=2)
    shown = np.where(apart == 1, truth, 0)
    plots.graph(
        shown, positions=places[:, ::-1] * (1, -1), ax=ax, label="true coupling"
    )
    rows, columns = SHAPE
    ax.set_title(f"A spin glass of {rows} x {columns} units")
    below = {"transform": ax.transAxes, "ha": "center", "va": "top", "fontsize": 8}
    ax.text(0.5, 0, "couplings around the torus are not shown", **below)
