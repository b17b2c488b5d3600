"""What `probjax fit`, `evaluate` and `sample` do: files in, files and a report out."""

import math
import sys
import zipfile
from argparse import Namespace
from pathlib import Path

import jax
import numpy as np

from probjax import plots
from probjax.apps import couplings, families, tables
from probjax.apps.families import FAMILIES, Model
from probjax.diagnostics import goodness
from probjax.exact.enumeration_blocks import LIMIT
from probjax.models import hopfield, ising, potts, rbm
from probjax.objectives.likelihood import MaximumLikelihood
from probjax.objectives.penalty import L1, L2
from probjax.objectives.pseudolikelihood import PseudoLikelihood
from probjax.runs import storage
from probjax.runs.npz import array_names
from probjax.types import Data

_OBJECTIVES = {
    "mpf": families.SiteFlow,
    "pseudolikelihood": PseudoLikelihood,
    "likelihood": MaximumLikelihood,
}


def fit(asked: Namespace) -> None:
    """Learn a model of a table, write it, and say how that went."""
    _check_fit(asked)
    table = tables.read(asked.data, array=asked.array)
    num_states = _num_states(asked, table)
    data = families.counted(table.x)
    start_key, fit_key = jax.random.split(jax.random.key(asked.seed))
    start = _start(start_key, asked, data, num_states)
    _check_sum(asked, start)
    penalty = L2(asked.l2) if asked.l1 is None else L1(asked.l1)
    say("compiling and fitting ...")
    model, found = families.learn(
        fit_key,
        asked.model,
        _objective(asked, num_states),
        start,
        data,
        penalty=penalty if penalty.strength else None,
        max_steps=asked.max_steps,
    )
    model = model._replace(alphabet=table.alphabet, names=table.header)
    storage.save(asked.out, model)
    outcome = "converged" if found.converged else "not converged"
    lines = [
        ("data", _described(asked.data, table)),
        ("estimator", f"{asked.estimator}, {_penalised(penalty)}"),
        ("loss", f"{float(found.loss):.6g}"),
        ("descent", f"{len(found.losses)} steps, {outcome}"),
        *_told_couplings(asked, model),
        ("written", str(asked.out)),
        *(("note", note) for note in _notes(table)),
    ]
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
    x = _in_order(asked.data, model.names, table)
    is_exact = families.can_sum(model)
    say("summing log Z ..." if is_exact else "running chains and annealing log Z ...")
    found = families.from_both_sides(
        jax.random.key(asked.seed), model, num_steps=asked.annealing_steps
    )
    minus_energy = -families.energies(model, x)
    mean, count = float(minus_energy.mean()), len(minus_energy)
    spread = minus_energy.std(ddof=1) / math.sqrt(count) if count > 1 else math.nan
    by_log_z = "" if is_exact else f"{found.stderr:.2g} by log Z, "
    within = f"{mean - found.upper:.6f} to {mean - found.lower:.6f} by log Z"
    lines = [
        ("data", _described(asked.data, table)),
        ("log-likelihood", f"{mean - found.log_z:.6f} nats per row"),
        ("standard error", f"{by_log_z}{spread:.2g} over rows"),
        *([] if is_exact else [("interval", within)]),
        ("log Z", f"{found.log_z:.6f}, {found.said}"),
        ("independent sites", f"{_independent(model, x):.6f} nats per row"),
    ]
    if not found.trusted:
        lines.append(("beware", "few particles count: raise --annealing-steps"))
    if asked.figures is not None:
        say("drawing rows for the figure ...")
        key = jax.random.key(asked.seed + 1)
        lines.append(("figure", _draw_moments(asked.figures, key, model, x)))
    _report(f"{model.family} model {asked.model.name}", lines)


def sample(asked: Namespace) -> None:
    """Draw rows and write them."""
    _check_out("--out", asked.out, ".npy", ".csv")
    model = load(asked.model)
    say("drawing ...")
    rows = families.draw(jax.random.key(asked.seed), model, asked.num)
    tables.write(asked.out, rows, model.alphabet, model.names)
    print(f"{len(rows):,} rows of {rows.shape[1]} sites written to {asked.out}")


def load(path: Path) -> Model:
    """The model in a file of `probjax fit`; anything else is refused."""
    if not path.is_file():
        raise ValueError(f"{path} is no file")
    if _is_foreign(path):
        raise ValueError(
            f"{path} is no model of probjax: the model comes first, then the data"
        )
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


def say(what: str) -> None:
    """Tell whoever waits what takes so long; the standard output is the report's."""
    print(f"probjax: {what}", file=sys.stderr, flush=True)


def _is_foreign(path: Path) -> bool:
    """Whether a file is none of `storage`; one that is damaged may be."""
    if path.suffix.lower() != ".npz":
        return True
    try:
        return "structure" not in array_names(path)
    except zipfile.BadZipFile:
        return False


def _check_fit(asked: Namespace) -> None:
    """Refuse what makes no sense before the work, and fill in what was left open."""
    _check_out("--out", asked.out, ".npz")
    if asked.couplings is not None:
        _check_out("--couplings", asked.couplings, ".csv")
    _check_figures(asked.figures)
    for option, of_model in (("hidden", "rbm"), ("states", "potts")):
        if vars(asked)[option] is not None and asked.model != of_model:
            raise ValueError(
                f"--{option} is of --model {of_model}: --model {asked.model} has none"
            )
    if asked.hidden is None:
        asked.hidden = 16
    if asked.estimator is None:
        asked.estimator = "pseudolikelihood" if asked.model == "rbm" else "mpf"


def _check_sum(asked, start):
    too_many = FAMILIES[asked.model].log2_terms(start) > math.log2(LIMIT)
    if asked.estimator == "likelihood" and too_many:
        other = "pseudolikelihood" if asked.model == "rbm" else "mpf"
        raise ValueError(
            f"exact likelihood sums over at most 2^{math.log2(LIMIT):.0f} states: "
            f"use --estimator {other}"
        )


def _num_states(asked, table):
    shown = max(int(table.x.max()) + 1, len(table.alphabet), 2)
    if asked.model != "potts" and shown > 2:
        raise ValueError(
            f"{asked.data} has {shown} letters, and --model {asked.model} is for two: "
            "use --model potts"
        )
    if asked.states is not None and asked.states < shown:
        raise ValueError(f"{asked.data} has {shown} letters: --states is too few")
    return asked.states or shown


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


def _in_order(path, names: tuple[str, ...], table: tables.Table) -> np.ndarray:
    """The columns as the model has them; as they come if one has no names."""
    header = table.header
    if not names or not header or header == names:
        return table.x
    if sorted(header) != sorted(names):
        unknown = [name for name in header if name not in names] or header
        raise ValueError(
            f"{path} has the column {unknown[0]!r}, which the model does not know: "
            "without its header, columns are taken as they come"
        )
    if len(set(names)) < len(names):
        raise ValueError(
            f"{path} has columns in another order than the model, and some of one name"
        )
    return table.x[:, [header.index(name) for name in names]]


def _check_out(option: str, path: Path, *endings: str) -> None:
    if path.suffix.lower() not in endings:
        raise ValueError(f"{option} must end in {' or '.join(endings)}, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"{option}: there is no folder {path.parent}")


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
    head = ", after a header" if table.header else ""
    return f"{path}, {rows:,} rows of {sites} sites{head}; {_entries(table)}"


def _entries(table):
    if table.alphabet == tables.SPINS:
        return "spins of -1 and 1"
    if table.alphabet:
        return f"letters: {', '.join(table.alphabet)}"
    return "bits" if table.x.max() < 2 else f"letters from 0 to {table.x.max()}"


def _penalised(penalty):
    where = "" if penalty.smooth else " on couplings"
    return f"{type(penalty).__name__} of {penalty.strength:g}{where}"


def _notes(table) -> list[str]:
    """What is likely to be wrong with the data, in words."""
    notes = []
    rows, sites = table.x.shape
    if rows < sites:
        notes.append(
            f"there are fewer rows ({rows}) than sites ({sites}): is the table "
            "transposed?"
        )
    constant = np.flatnonzero((table.x == table.x[0]).all(axis=0))
    if len(constant):
        names = table.header or [str(column + 1) for column in range(sites)]
        shown = ", ".join(names[column] for column in constant[:5])
        more = f" and {len(constant) - 5} more" if len(constant) > 5 else ""
        notes.append(f"columns that never change: {shown}{more}")
    return notes


def _report(title, lines):
    print(f"# {title}\n")
    print("| | |\n| --- | --- |")
    for name, said in lines:
        print(f"| {name} | {said} |")


def _told_couplings(asked, model: Model) -> list[tuple[str, str]]:
    """What is coupled, in words, a file and a figure, as far as was asked for."""
    found = couplings.of(model)
    lines = [("couplings", found.meaning)]
    if asked.l1 is not None:
        what = "weights are not zero" if model.family == "rbm" else "pairs are coupled"
        count, total = found.is_coupled.sum(), found.is_coupled.size
        lines.append(("coupled", f"{count:,} of {total:,} {what}"))
    if asked.couplings is not None:
        rows = [[f"{value:.9g}" for value in row] for row in found.matrix]
        tables.write_csv(asked.couplings, rows, model.names)
        lines.append(("couplings in", str(asked.couplings)))
    if asked.figures is not None:
        lines.append(("figure", _draw_couplings(asked.figures, model.family, found)))
    return lines


def _draw_couplings(folder: Path, family: str, found: couplings.Couplings) -> str:
    figure, ax = _subplots()
    if family == "rbm":
        plots.couplings(found.matrix.T, ax=ax, label=found.label)
        ax.set(xlabel="hidden unit", ylabel="visible unit", aspect="auto")
    else:
        matrix = couplings.off_diagonal(found.matrix)
        plots.couplings(matrix, ax=ax, label=found.label)
    return _saved(folder / "couplings.png", figure)


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
