"""Commands `probjax fit`, `evaluate` and `sample`, which read and write files.

Each command prints a report on standard output and its progress on standard error.
"""

import math
import sys
import zipfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from probjax import plots
from probjax.apps import couplings, fitted_models, tables
from probjax.apps.families import FAMILIES, Independent
from probjax.apps.fitted_models import Model
from probjax.diagnostics import goodness
from probjax.exact.enumeration_blocks import LIMIT
from probjax.interfaces import Objective
from probjax.objectives.penalty import L1, L2
from probjax.runs import storage
from probjax.runs.npz import array_names
from probjax.types import Params

WITH_HIDDEN = " or ".join(name for name, each in FAMILIES.items() if each.has_hidden)
"""Families with hidden units, for error messages."""
OF_LETTERS = " or ".join(name for name, each in FAMILIES.items() if not each.is_binary)
"""Families for more than two letters, for error messages."""


def fit(args: Namespace) -> None:
    """Fit a model to a table, save it and print a report."""
    _check_fit(args)
    table = tables.read(args.data, array=args.array)
    num_states = _num_states(args, table)
    data = fitted_models.distinct_rows(table.x)
    start_key, fit_key, check_key = jax.random.split(jax.random.key(args.seed), 3)
    start = FAMILIES[args.model].init(start_key, data, num_states, args.hidden)
    _check_sum(args, start)
    penalty = _penalty(args)
    print_progress("compiling and fitting ...")
    model, found = fitted_models.fit_model(
        fit_key,
        args.model,
        _objective(args, num_states),
        start,
        data,
        penalty=penalty if penalty.strength else None,
        max_steps=args.max_steps,
    )
    model = model._replace(alphabet=table.alphabet, names=table.header)
    storage.save(args.out, model)
    print_progress("checking the model with chains from the data ...")
    checked = fitted_models.check_model(check_key, model, data)
    outcome = "converged" if found.converged else "not converged"
    lines = [
        ("data", _describe_table(args.data, table)),
        ("estimator", f"{args.estimator}, {_describe_penalty(penalty)}"),
        ("loss", f"{float(found.loss):.6g}"),
        ("descent", f"{len(found.losses)} steps, {outcome}"),
        ("check", ("" if checked.passed else "FAILED: ") + checked.describe()),
        *_report_couplings(args, model),
        ("written", str(args.out)),
        *(("note", note) for note in _notes(table)),
    ]
    _print_report(f"{args.model} model of {args.data.name}", lines)
    print(f"\nNext: probjax evaluate {args.out} HELD_OUT_DATA")


def evaluate(args: Namespace) -> None:
    """Print the mean log-likelihood of a table with its standard errors."""
    _check_figures(args.figures)
    model = load(args.model)
    table = tables.read(args.data, array=args.array, alphabet=model.alphabet)
    _check_states(args.data, model, table.x)
    if args.figures is not None and len(table.x) < 2:
        raise ValueError(
            f"{args.data} must have at least two rows with --figures, got one; leave "
            "--figures out"
        )
    x = _match_columns(args.data, model.names, table)
    is_exact = fitted_models.can_sum(model)
    print_progress(
        "summing log Z ..." if is_exact else "running chains and annealing log Z ..."
    )
    found = fitted_models.bracket_log_z(
        jax.random.key(args.seed), model, num_steps=args.annealing_steps
    )
    minus_energy = -fitted_models.energies(model, x)
    mean, count = float(minus_energy.mean()), len(minus_energy)
    spread = minus_energy.std(ddof=1) / math.sqrt(count) if count > 1 else math.nan
    from_log_z = "" if is_exact else f"{found.stderr:.2g} from log Z, "
    bounds = f"{mean - found.upper:.6f} to {mean - found.lower:.6f} (bounds on log Z)"
    lines = [
        ("data", _describe_table(args.data, table)),
        ("log-likelihood", f"{mean - found.log_z:.6f} nats per row"),
        ("standard error", f"{from_log_z}{spread:.2g} over rows"),
        *([] if is_exact else [("interval", bounds)]),
        ("log Z", f"{found.log_z:.6f}, {found.said}"),
    ]
    lines += _compare_with_independent(model, x, minus_energy - found.log_z)
    if not found.trusted:
        lines.append(
            ("warning", "too few effective particles: raise --annealing-steps")
        )
    if args.figures is not None:
        print_progress("drawing rows for the figure ...")
        key = jax.random.key(args.seed + 1)
        lines.append(("figure", _plot_pairs(args.figures, key, model, x)))
    _print_report(f"{model.family} model {args.model.name}", lines)


def sample(args: Namespace) -> None:
    """Draw rows from a model and write them to a file."""
    _check_output("--out", args.out, ".npy", ".csv")
    model = load(args.model)
    print_progress("drawing ...")
    rows = fitted_models.draw(jax.random.key(args.seed), model, args.num)
    tables.write(args.out, rows, model.alphabet, model.names)
    print(f"{len(rows):,} rows of {rows.shape[1]} sites written to {args.out}")


def load(path: Path) -> Model:
    """Return the model in a file that `probjax fit` wrote; raise for any other file."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    if not _may_be_saved_tree(path):
        raise ValueError(
            f"{path} is not a probjax model; give the model first, then the data"
        )
    model = storage.load(path)
    family = FAMILIES.get(model.family) if isinstance(model, Model) else None
    if not (
        family is not None
        and isinstance(model.params, family.params_class)
        and isinstance(model.base, Independent)
    ):
        raise ValueError(f"{path} does not contain a model written by `probjax fit`")
    return model


def print_progress(message: str) -> None:
    """Print on standard error what is computed next."""
    print(f"probjax: {message}", file=sys.stderr, flush=True)


def _may_be_saved_tree(path: Path) -> bool:
    """Whether `storage` may have written a file, which includes damaged files."""
    if path.suffix.lower() != ".npz":
        return False
    try:
        return "structure" in array_names(path)
    except zipfile.BadZipFile:
        return True


def _check_fit(args: Namespace) -> None:
    """Raise for options that contradict each other, and fill in defaults."""
    _check_output("--out", args.out, ".npz")
    if args.couplings is not None:
        _check_output("--couplings", args.couplings, ".csv")
    _check_figures(args.figures)
    family = FAMILIES[args.model]
    if args.hidden is not None and not family.has_hidden:
        raise ValueError(f"--hidden requires --model {WITH_HIDDEN}, got {args.model}")
    if args.states is not None and family.is_binary:
        raise ValueError(f"--states requires --model {OF_LETTERS}, got {args.model}")
    if args.hidden is None:
        args.hidden = 16
    if args.estimator is None:
        args.estimator = next(iter(family.objectives))
    if args.estimator not in family.objectives:
        raise ValueError(
            f"--estimator must be {' or '.join(family.objectives)} for --model "
            f"{args.model}, got {args.estimator}"
        )


def _check_sum(args: Namespace, start: Params) -> None:
    family = FAMILIES[args.model]
    too_many = family.log2_terms(start) > math.log2(LIMIT)
    if args.estimator == "likelihood" and too_many:
        raise ValueError(
            f"--estimator likelihood sums over at most 2^{math.log2(LIMIT):.0f} states "
            f"and this model has more; use --estimator {next(iter(family.objectives))}"
        )


def _num_states(args: Namespace, table: tables.Table) -> int:
    found = max(int(table.x.max()) + 1, len(table.alphabet), 2)
    if FAMILIES[args.model].is_binary and found > 2:
        raise ValueError(
            f"{args.data} must have two letters for --model {args.model}, got {found}; "
            f"use --model {OF_LETTERS}"
        )
    if args.states is not None and args.states < found:
        raise ValueError(
            f"--states must be at least {found}, the number of letters in {args.data}, "
            f"got {args.states}"
        )
    return args.states or found


def _objective(args: Namespace, num_states: int) -> Objective:
    family = FAMILIES[args.model]
    return family.objectives[args.estimator](family.energy, num_states=num_states)


def _check_states(path: Path, model: Model, x: np.ndarray) -> None:
    size, num_states = FAMILIES[model.family].space(model.params)
    if x.shape[1] != size:
        raise ValueError(
            f"{path} must have {size} sites like the model, got {x.shape[1]}"
        )
    if x.max() >= num_states:
        raise ValueError(
            f"{path} must have the letters 0 to {num_states - 1} of the model, got "
            f"{x.max()}"
        )


def _match_columns(path, names: tuple[str, ...], table: tables.Table) -> np.ndarray:
    """Return the rows with columns in the model's order, matched by name.

    Columns keep their order if the model or the table has no names.
    """
    header = table.header
    if not names or not header or header == names:
        return table.x
    if sorted(header) != sorted(names):
        unknown = [name for name in header if name not in names] or header
        raise ValueError(
            f"{path} has the column {unknown[0]!r}, which is not a site of the model; "
            "remove the header to match columns by position"
        )
    if len(set(names)) < len(names):
        raise ValueError(
            f"{path} has columns in another order than the model, and some of them "
            "share a name; give them different names or the order of the model"
        )
    return table.x[:, [header.index(name) for name in names]]


def _check_output(option: str, path: Path, *endings: str) -> None:
    if path.suffix.lower() not in endings:
        raise ValueError(f"{option} must end in {' or '.join(endings)}, got {path}")
    if not path.parent.is_dir():
        raise ValueError(
            f"{option} must be in an existing folder, got {path}; create {path.parent}"
        )


def _check_figures(folder: Path | None) -> None:
    """Raise before any work is done if figures cannot be drawn or saved."""
    if folder is not None:
        plots.load_pyplot()
        folder.mkdir(parents=True, exist_ok=True)


def _compare_with_independent(
    model: Model, x: np.ndarray, log_probs: np.ndarray
) -> list[tuple[str, str]]:
    """Report the log-likelihood of independent sites fitted to the training data.

    Args:
        log_probs: log probability of each row in the model.
    """
    energies = fitted_models.independent_energies(model.base, x)
    independent = -energies - float(model.base.log_z)
    lines = [("independent sites", f"{independent.mean():.6f} nats per row")]
    loss = independent - log_probs
    if loss.mean() > 0:
        count = len(loss)
        stderr = loss.std(ddof=1) / math.sqrt(count) if count > 1 else math.nan
        message = (
            f"the model predicts these rows worse than independent sites, by "
            f"{loss.mean():.2g} +- {stderr:.1g} nats per row: try another strength of "
            "the penalty or another --estimator in probjax fit"
        )
        lines.append(("warning", message))
    return lines


def _describe_table(path: Path, table: tables.Table) -> str:
    rows, sites = table.x.shape
    header = ", after a header" if table.header else ""
    return f"{path}, {rows:,} rows of {sites} sites{header}; {_describe_letters(table)}"


def _describe_letters(table: tables.Table) -> str:
    if table.alphabet == tables.SPINS:
        return "spins of -1 and 1"
    if table.alphabet:
        return f"letters: {', '.join(table.alphabet)}"
    return "bits" if table.x.max() < 2 else f"letters from 0 to {table.x.max()}"


def _penalty(args: Namespace) -> L1 | L2:
    if args.l1 is not None:
        return L1(args.l1)
    return L2(FAMILIES[args.model].strength if args.l2 is None else args.l2)


def _describe_penalty(penalty: L1 | L2) -> str:
    return f"{type(penalty).__name__} of {penalty.strength:g} on couplings"


def _notes(table: tables.Table) -> list[str]:
    """Return a sentence for each likely mistake in the data."""
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


def _print_report(title: str, lines: Sequence[tuple[str, str]]) -> None:
    print(f"# {title}\n")
    print("| | |\n| --- | --- |")
    for name, value in lines:
        print(f"| {name} | {value} |")


def _report_couplings(args: Namespace, model: Model) -> list[tuple[str, str]]:
    """Write couplings to the requested files and return their lines of the report."""
    found = fitted_models.couplings_of(model)
    has_hidden = FAMILIES[model.family].has_hidden
    lines = [("couplings", found.meaning)]
    if args.l1 is not None:
        nonzero = "weights are not zero" if has_hidden else "pairs are coupled"
        count, total = found.is_coupled.sum(), found.is_coupled.size
        lines.append(("coupled", f"{count:,} of {total:,} {nonzero}"))
    if args.couplings is not None:
        rows = [[f"{value:.9g}" for value in row] for row in found.matrix]
        tables.write_csv(args.couplings, rows, model.names)
        lines.append(("couplings in", str(args.couplings)))
    if args.figures is not None:
        path = _plot_couplings(args.figures, found, has_hidden=has_hidden)
        lines.append(("figure", path))
    return lines


def _plot_couplings(
    folder: Path, found: couplings.Couplings, *, has_hidden: bool
) -> str:
    figure, ax = _subplots()
    if has_hidden:
        plots.couplings(found.drawn.T, ax=ax, label=found.label)
        ax.set(xlabel="hidden unit", ylabel="visible unit", aspect="auto")
    else:
        plots.couplings(found.drawn, ax=ax, label=found.label)
    return _save_figure(folder / "couplings.png", figure)


def _plot_pairs(folder: Path, key, model: Model, x: np.ndarray) -> str:
    num_states = FAMILIES[model.family].space(model.params).num_states
    drawn = fitted_models.draw(key, model, 10_000)
    figure, ax = _subplots()
    # Successive rows of `draw` come from different chains.
    chains = drawn.reshape(-1, fitted_models.NUM_CHAINS, x.shape[1]).swapaxes(0, 1)
    found = goodness.pair_frequencies(_bits(x, num_states), _bits(chains, num_states))
    plots.comparison(found, ax=ax, label="a pair")
    ax.set(xlabel="frequency in 10,000 draws of the model")
    ax.set(ylabel="frequency in the data", title="Pairs of letters at pairs of sites")
    ax.legend(frameon=False)
    return _save_figure(folder / "pairs.png", figure)


def _bits(x: np.ndarray, num_states: int) -> np.ndarray:
    """Return a bit for each site and each letter except 0: whether the site has it."""
    return (x[..., None] == np.arange(1, num_states)).reshape(*x.shape[:-1], -1)


def _subplots():
    pyplot = plots.load_pyplot()
    pyplot.switch_backend("Agg")
    return pyplot.subplots(layout="constrained")


def _save_figure(path: Path, figure) -> str:
    figure.savefig(path, dpi=150)
    plots.load_pyplot().close(figure)
    return str(path)
