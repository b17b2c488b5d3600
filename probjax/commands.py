"""What `probjax fit`, `evaluate` and `sample` do: files in, files and a report out."""

import math
from argparse import Namespace
from pathlib import Path

import jax
import numpy as np

from probjax import families, goodness, plots, storage, tables
from probjax.families import FAMILIES, Model
from probjax.models import hopfield, ising, potts, rbm
from probjax.objectives.likelihood import MaximumLikelihood
from probjax.objectives.local import PseudoLikelihood
from probjax.objectives.penalty import L1, L2
from probjax.types import Data

_OBJECTIVES = {
    "mpf": families.SiteFlow,
    "pseudolikelihood": PseudoLikelihood,
    "likelihood": MaximumLikelihood,
}
_COUPLINGS = {
    "ising": lambda params: ("coupling", _pairs_alone(ising.coupling_matrix(params))),
    "potts": lambda params: ("score", _pairs_alone(potts.contact_scores(params))),
    "hopfield": lambda params: ("weight", _pairs_alone(params.weight)),
    "rbm": lambda params: ("weight", params.weight),
}


def fit(asked: Namespace) -> None:
    """Learn a model of a table, write it, and say how that went."""
    _check_out(asked.out, ".npz")
    _check_figures(asked.figures)
    if asked.estimator is None:
        asked.estimator = "pseudolikelihood" if asked.model == "rbm" else "mpf"
    table = tables.read(asked.data, array=asked.array)
    num_states = _num_states(asked, table)
    data = families.counted(table.x)
    start_key, fit_key = jax.random.split(jax.random.key(asked.seed))
    penalty = L2(asked.l2) if asked.l1 is None else L1(asked.l1)
    model, found = families.learn(
        fit_key,
        asked.model,
        _objective(asked, num_states),
        _start(start_key, asked, data, num_states),
        data,
        penalty=penalty if penalty.strength else None,
        max_steps=asked.max_steps,
    )
    model = model._replace(alphabet=table.alphabet)
    storage.save(asked.out, model)
    outcome = "converged" if found.converged else "not converged"
    lines = [
        ("data", _described(asked.data, table)),
        (
            "estimator",
            f"{asked.estimator}, {type(penalty).__name__} of {penalty.strength:g}",
        ),
        ("loss", f"{float(found.loss):.6g}"),
        ("descent", f"{len(found.losses)} steps, {outcome}"),
        ("written", str(asked.out)),
    ]
    if asked.figures is not None:
        lines.append(("figure", _draw_couplings(asked.figures, model)))
    _report(f"{asked.model} model of {asked.data.name}", lines)
    print(f"\nNext: probjax evaluate {asked.out} HELD_OUT_DATA")


def evaluate(asked: Namespace) -> None:
    """The log-likelihood of a table, with what it is uncertain by."""
    _check_figures(asked.figures)
    model = load(asked.model)
    table = tables.read(asked.data, array=asked.array, alphabet=model.alphabet)
    _check_states(asked.data, model, table.x)
    if asked.figures is not None and len(table.x) < 2:
        raise ValueError(
            f"{asked.data} has one row, and --figures compare at least two"
        )
    found = families.from_both_sides(
        jax.random.key(asked.seed), model, num_steps=asked.annealing_steps
    )
    minus_energy = -families.energies(model, table.x)
    mean, count = float(minus_energy.mean()), len(minus_energy)
    spread = minus_energy.std(ddof=1) / math.sqrt(count) if count > 1 else math.nan
    lines = [
        ("data", _described(asked.data, table)),
        ("log-likelihood", f"{mean - found.log_z:.6f} nats per row"),
        ("standard error", f"{found.stderr:.2g} by log Z, {spread:.2g} over rows"),
        ("interval", f"{mean - found.upper:.6f} to {mean - found.lower:.6f} by log Z"),
        ("log Z", f"{found.log_z:.6f}, {found.said}"),
        ("independent sites", f"{_independent(model, table.x):.6f} nats per row"),
    ]
    if not found.trusted:
        lines.append(("beware", "few particles count: raise --annealing-steps"))
    if asked.figures is not None:
        key = jax.random.key(asked.seed + 1)
        lines.append(("figure", _draw_moments(asked.figures, key, model, table.x)))
    _report(f"{model.family} model {asked.model.name}", lines)


def sample(asked: Namespace) -> None:
    """Draw rows and write them."""
    _check_out(asked.out, ".npy", ".csv")
    model = load(asked.model)
    rows = families.draw(jax.random.key(asked.seed), model, asked.num)
    tables.write(asked.out, rows, model.alphabet)
    print(f"{len(rows):,} rows of {rows.shape[1]} sites written to {asked.out}")


def load(path: Path) -> Model:
    """The model in a file of `probjax fit`; anything else is refused."""
    if not path.is_file():
        raise ValueError(f"{path} is no file")
    model = storage.load(path)
    kinds = {
        "ising": ising.Params,
        "potts": potts.Params,
        "hopfield": hopfield.Params,
        "rbm": rbm.Params,
    }
    if not (
        isinstance(model, Model)
        and isinstance(model.params, kinds.get(model.family, ()))
        and isinstance(model.base, families.Independent)
    ):
        raise ValueError(f"{path} holds no model that `probjax fit` wrote")
    return model


def _num_states(asked, table):
    shown = max(int(table.x.max()) + 1, len(table.alphabet), 2)
    if asked.model != "potts" and shown > 2:
        raise ValueError(
            f"{asked.data} has {shown} letters, and --model {asked.model} is for two: "
            "use --model potts"
        )
    if asked.model == "potts" and asked.states is not None and asked.states < shown:
        raise ValueError(f"{asked.data} has {shown} letters: --states is too few")
    return shown if asked.model != "potts" else asked.states or shown


def _objective(asked, num_states):
    if asked.model == "rbm" and asked.estimator == "likelihood":
        return MaximumLikelihood(rbm.energy, log_z=rbm.log_z)
    energy = FAMILIES[asked.model].energy
    return _OBJECTIVES[asked.estimator](energy, num_states=num_states)


def _start(key, asked, data: Data, num_states):
    size = data.x.shape[1]
    starts = {
        "ising": lambda: ising.init(key, size, scale=0.0),
        "potts": lambda: potts.init(key, size, num_states, scale=0.0),
        "hopfield": lambda: hopfield.init(key, size),
        "rbm": lambda: rbm.init(key, size, asked.hidden, scale=0.1, data=data),
    }
    return starts[asked.model]()


def _check_states(path, model, x):
    size, num_states = FAMILIES[model.family].space(model.params)
    if x.shape[1] != size:
        raise ValueError(f"{path} has {x.shape[1]} sites, the model {size}")
    if x.max() >= num_states:
        raise ValueError(
            f"{path} has the letter {x.max()}, the model's are 0 to {num_states - 1}"
        )


def _check_out(path: Path, *endings: str) -> None:
    if path.suffix.lower() not in endings:
        raise ValueError(f"--out must end in {' or '.join(endings)}, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"--out: there is no folder {path.parent}")


def _check_figures(folder: Path | None) -> None:
    """What cannot be drawn is said before the work, not after it."""
    if folder is not None:
        plots.load_pyplot()
        folder.mkdir(parents=True, exist_ok=True)


def _independent(model: Model, x: np.ndarray) -> float:
    """The log-likelihood of independent sites with the means of the fitted data."""
    energies = families.independent_energies(model.base, x)
    return -float(energies.mean()) - float(model.base.log_z)


def _described(path, table):
    rows, sites = table.x.shape
    letters = ", ".join(table.alphabet) or "whole numbers from 0"
    head = ", after a header" if table.header else ""
    return f"{path}, {rows:,} rows of {sites} sites{head}; letters: {letters}"


def _report(title, lines):
    print(f"# {title}\n")
    print("| | |\n| --- | --- |")
    for name, said in lines:
        print(f"| {name} | {said} |")


def _draw_couplings(folder: Path, model: Model) -> str:
    label, matrix = _COUPLINGS[model.family](model.params)
    figure, ax = _subplots()
    plots.couplings(matrix, ax=ax, label=label)
    if model.family == "rbm":
        ax.set(xlabel="hidden unit", ylabel="visible unit", aspect="auto")
    return _saved(folder / "couplings.png", figure)


def _pairs_alone(matrix) -> np.ndarray:
    """Biases on the diagonal would outshine what is coupled."""
    return np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)


def _draw_moments(folder: Path, key, model: Model, x: np.ndarray) -> str:
    num_states = FAMILIES[model.family].space(model.params).num_states
    drawn = families.draw(key, model, 10_000)
    figure, ax = _subplots()
    # Rows of the chains take turns.
    chains = drawn.reshape(-1, families.NUM_CHAINS, x.shape[1]).swapaxes(0, 1)
    found = goodness.pair_frequencies(_bits(x, num_states), _bits(chains, num_states))
    plots.comparison(found, ax=ax, label="a pair")
    ax.set(xlabel="frequency in 10,000 draws of the model")
    ax.set(ylabel="frequency in the data", title="Pairs of letters at pairs of sites")
    ax.legend(frameon=False)
    return _saved(folder / "pairs.png", figure)


def _bits(x: np.ndarray, num_states: int) -> np.ndarray:
    """Which letter a site has, other than the letter 0, as a bit a letter."""
    return (x[..., None] == np.arange(1, num_states)).reshape(*x.shape[:-1], -1)


def _subplots():
    pyplot = plots.load_pyplot()
    pyplot.switch_backend("Agg")
    return pyplot.subplots(layout="constrained")


def _saved(path: Path, figure) -> str:
    figure.savefig(path, dpi=150)
    plots.load_pyplot().close(figure)
    return str(path)
