"""Demonstration: recover the couplings of a simulated spin glass in about a minute.

Two methods that do not need the partition function, minimum probability flow and
pseudolikelihood, are fitted to 20,000 independent states of a 10x10 spin glass. Because
the true and the fitted models are lattices, their moments, log Z and divergence are
computed exactly for comparison.

Reference: thesis, "Two Dimensional Ising Spin Glass".
"""

import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from probjax import exact, plots
from probjax.apps.commands import print_progress
from probjax.fitting.fit import fit
from probjax.models import ising
from probjax.objectives.flow import MPF
from probjax.objectives.pseudolikelihood import PseudoLikelihood
from probjax.types import Array

SHAPE, NUM_STATES, VARIANCE = (10, 10), 20_000, 2.5


class Outcome(NamedTuple):
    """Result of one fit, compared with the true model."""

    name: str
    matrix: Array
    """Fitted couplings, `(site, site)`."""
    correlation: np.ndarray
    """Exact correlations of the fitted model, `(site, site)`."""
    coupling_error: float
    """Mean square error over the entries of J."""
    correlation_error: float
    """Mean square error of the correlations over pairs."""
    divergence: float
    """Exact KL(truth || fit) in nats per state."""
    log_likelihood: float
    """Mean log-likelihood of states that were not fitted, in nats."""
    seconds: float
    """Duration of the fit, without compilation."""


def run(folder: Path) -> Path:
    """Print a table of both fits, save a figure in `folder` and return its path."""
    plots.load_pyplot()
    print_progress(
        f"drawing {2 * NUM_STATES:,} independent states of a 10x10 spin glass, half of "
        "them for testing ..."
    )
    glass_key, state_key, fit_key = jax.random.split(jax.random.key(0), 3)
    truth = exact.lattice.spin_glass(glass_key, SHAPE, variance=VARIANCE)
    draws = exact.lattice.sample(
        state_key, truth, SHAPE, num_draws=2 * NUM_STATES, periodic=True
    )
    train, test = draws[:NUM_STATES], draws[NUM_STATES:]
    moments = exact.lattice.moments(truth, SHAPE, periodic=True)
    print_progress("compiling, fitting, and comparing with the true model ...")
    objectives = {
        "MPF": MPF(ising.energy),
        "pseudolikelihood": PseudoLikelihood(ising.energy),
    }
    outcomes = [
        _compare(name, *_fit(fit_key, objective, train), truth, moments, test)
        for name, objective in objectives.items()
    ]
    _print_table(outcomes, float(_log_likelihood(truth, test)))
    path = _plot(folder, np.asarray(truth), moments, outcomes)
    print(f"\nFigure: {path}")
    return path


def _fit(key, objective, data):
    """Return the fitted couplings of the lattice and the duration in seconds.

    The fit runs twice, and the second, already compiled run is timed.
    """
    edges = exact.lattice.edges(SHAPE, periodic=True)
    start = ising.init(key, data.shape[1], edges=edges)
    run_fit = partial(fit, key, objective, start, data)
    jax.block_until_ready(run_fit())
    before = time.perf_counter()
    found = jax.block_until_ready(run_fit())
    return ising.coupling_matrix(found.params), time.perf_counter() - before


def _compare(name, matrix, seconds, truth, moments, test):
    """Return the outcome of a fit, given the true couplings and their moments."""
    divergence = exact.lattice.kl(truth, matrix, SHAPE, periodic=True)
    expected = correlation(moments)
    found = correlation(exact.lattice.moments(matrix, SHAPE, periodic=True))
    pairs = np.triu_indices(len(truth), 1)
    return Outcome(
        name,
        matrix,
        found,
        float(np.mean(np.square(np.asarray(matrix - truth)))),
        float(np.mean(np.square(found - expected)[pairs])),
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
    """Return Pearson correlations, given first and second moments."""
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
        "\nErrors are mean square errors. Only couplings between neighbours are fitted"
        "\nhere, to independent states; the states of the thesis came from a Markov"
        "\nchain. `python -m benchmarks mpf-cost` fits the couplings of all pairs."
    )


def _plot(folder, truth, moments, outcomes):
    pyplot = plots.load_pyplot()
    pyplot.switch_backend("Agg")
    figure, axes = pyplot.subplots(
        1, 4, figsize=(13, 3.4), layout="constrained", width_ratios=(1.15, 1, 1, 1)
    )
    # Space between the colour bar and the next panel.
    figure.get_layout_engine().set(wspace=0.08)
    lattice, couplings, *rest = axes
    _plot_lattice(lattice, truth)
    edges = np.nonzero(np.triu(truth, 1))
    pairs = np.triu_indices(len(truth), 1)
    expected = correlation(moments)[pairs]
    # Couplings of both fits share a panel, where small markers stay visible on large
    # ones. There are too many correlations for that, so each fit has its own panel.
    styles = ((plots.BLUE, "o", 28), (plots.ORANGE, "^", 8))
    for found, (color, marker, size), ax in zip(outcomes, styles, rest, strict=True):
        style = {"label": found.name, "color": color, "marker": marker}
        fitted = -2 * np.asarray(found.matrix)[edges]
        plots.agreement(-2 * truth[edges], fitted, ax=couplings, size=size, **style)
        plots.agreement(expected, found.correlation[pairs], ax=ax, size=3, **style)
        ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        ax.set(xlabel=f"true correlation of {len(expected):,} pairs")
        ax.set(ylabel="fitted correlation", title=f"by {found.name}")
    couplings.set(xlabel="true coupling", ylabel="fitted coupling")
    couplings.set_title(f"Couplings, from {NUM_STATES:,} states")
    couplings.legend(frameon=False, handletextpad=0.2, borderaxespad=0)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "spin-glass.png"
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path.resolve()


def _plot_lattice(ax, truth):
    """Draw the true couplings on the lattice, without the periodic ones."""
    places = np.argwhere(np.ones(SHAPE))
    distance = np.abs(places[:, None] - places[None]).sum(axis=2)
    # Over bits, a coupling that excites is positive and 2 times an entry of -x'Jx.
    shown = np.where(distance == 1, -2 * truth, 0)
    plots.graph(shown, positions=places[:, ::-1] * (1, -1), ax=ax)
    rows, columns = SHAPE
    ax.set_title(f"A spin glass of {rows} x {columns} units")
    below = {"transform": ax.transAxes, "ha": "center", "va": "top", "fontsize": 8}
    ax.text(0.5, 0, "periodic couplings are not shown", **below)
