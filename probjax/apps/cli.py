"""Command line `probjax`: its options, exit codes and error messages.

The exit code is 0 on success, 2 if an option or a file is invalid and 1 for any other
error. Each error is printed as one sentence, without a traceback.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from probjax import __version__
from probjax.apps import commands, demo
from probjax.apps.compilation_cache import keep_programs
from probjax.apps.families import FAMILIES

_ABOUT = """Fit models of bits, spins and letters whose partition function is unknown.

  probjax fit spikes.npy --out model.npz      fit an Ising model to rows
  probjax evaluate model.npz held-out.npy     its log-likelihood, with log Z
  probjax sample model.npz --num 1000         draw rows from it
  probjax demo                                an example that takes a minute

Tables are .npy, .npz, .csv or .tsv files with a row for each observation and a column
for each site. For details and examples see `probjax fit --help` and so on."""

_FIT = """Fit a model without computing its partition function, and save it to a file.

Entries are bits, spins of -1 and 1, whole numbers from 0 (for --model potts) or text
such as A,C,G,T. A .csv file may have a header, whose names are saved with the model.
The saved file contains arrays and no pickles.

Couplings are J of E = x'Jx, where likely states x of 0 and 1 have a low energy E: a
positive J_ij means "seldom on together", and 2 J_ij is the energy of the pair. For
hopfield they are J of E = -x'Jx / 2 + theta'x, which has the opposite sign."""

_FIT_EXAMPLE = """examples:
  probjax fit spikes.npy
  probjax fit votes.csv --estimator pseudolikelihood --l1 0.01 --couplings J.csv
  probjax fit family.csv --model potts --figures out
  probjax fit digits.npz --array train --model rbm --hidden 50"""

_EVALUATE = """Print the mean log-likelihood of held-out rows, in nats per row.

log Z is summed exactly if that takes at most 2^20 terms. Otherwise an interval is
estimated by annealing in both directions: from independent sites to the model, and back
from the last states of Markov chains. The interval is valid if these chains have
converged to the model."""

_SAMPLE = """Draw rows from a model and write them with the letters of the fitted data.

Rows are independent if there are at most 2^20 states. Otherwise they come from up to
200 Markov chains, of which every tenth state is kept after 1,000 warmup steps."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the words after `probjax`; None for those of this process.

    >>> main(["fit", "no-such-table.csv"])  # prints an error on standard error
    2
    """
    args = _parser().parse_args(argv)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        with nullcontext() if args.no_cache else keep_programs():
            code = _run(args)
    for message in dict.fromkeys(str(note.message) for note in notes):
        print(f"probjax: note: {message}", file=sys.stderr)
    return code


def _run(args: argparse.Namespace) -> int:
    try:
        _run_command(args)
    except ValueError as error:
        return _print_error(error, 2)
    except KeyboardInterrupt:
        print("probjax: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return _print_error(error, 1)
    return 0


def _run_command(args: argparse.Namespace) -> None:
    if args.command == "demo":
        demo.run(args.out)
        return
    {"fit": commands.fit, "evaluate": commands.evaluate, "sample": commands.sample}[
        args.command
    ](args)


def _print_error(error: Exception, code: int) -> int:
    message = (str(error) or type(error).__name__).splitlines()[0]
    print(f"probjax: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="probjax",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"probjax {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_fit(_command(subparsers, "fit", "fit a model to a table", _FIT, _FIT_EXAMPLE))
    example = "example:\n  probjax evaluate model.npz held-out.npy"
    about = "print the log-likelihood of a table"
    _add_evaluate(_command(subparsers, "evaluate", about, _EVALUATE, example))
    example = "example:\n  probjax sample model.npz --num 1000 --out samples.csv"
    _add_sample(_command(subparsers, "sample", "draw rows", _SAMPLE, example))
    about = "fit a simulated spin glass and compare with its true parameters"
    demo_parser = _command(subparsers, "demo", about, about, "example:\n  probjax demo")
    demo_parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for the figure (./out)"
    )
    return parser


def _command(subparsers, name, brief, about, example):
    parser = subparsers.add_parser(
        name,
        help=brief,
        description=about,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="compile everything, and do not keep programs for the next call",
    )
    return parser


def _add_fit(parser):
    _add_table(parser)
    parser.add_argument(
        "--model",
        choices=tuple(FAMILIES),
        default="ising",
        help="bits in pairs (ising, the default; hopfield), letters in pairs (potts), "
        "or bits and hidden units (rbm)",
    )
    estimators = [name for family in FAMILIES.values() for name in family.objectives]
    parser.add_argument(
        "--estimator",
        choices=tuple(dict.fromkeys(estimators)),
        help="minimum probability flow (mpf, the default for ising and hopfield), "
        "pseudolikelihood (the default for potts and rbm), or exact likelihood for "
        "small models",
    )
    strengths = (f"{each.strength:g} for {name}" for name, each in FAMILIES.items())
    strengths = ", ".join(strengths)
    penalty = parser.add_mutually_exclusive_group()
    penalty.add_argument(
        "--l2",
        type=_strength,
        help=f"strength of an L2 penalty on couplings ({strengths}). It is added to a "
        "mean over rows: lambda_e of plmc is this strength times the effective number "
        "of rows",
    )
    penalty.add_argument(
        "--l1",
        type=_strength,
        help="strength of an L1 penalty on couplings instead, which sets some of them "
        "exactly to 0",
    )
    parser.add_argument("--hidden", type=_count, help="hidden units of an rbm (16)")
    parser.add_argument(
        "--states", type=_count, help="letters of a potts model (those in the data)"
    )
    parser.add_argument(
        "--max-steps",
        type=_count,
        default=2000,
        help="largest number of descent steps (2000)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("model.npz"), help="file (model.npz)"
    )
    parser.add_argument(
        "--couplings",
        type=Path,
        help="a .csv file for the couplings, with the names of the sites as header: J, "
        "for ising with biases on the diagonal; contact scores for potts; weights for "
        "rbm, a row for each hidden unit",
    )
    _add_seed_and_figures(parser)


def _add_evaluate(parser):
    parser.add_argument("model", type=Path, help="a file that `probjax fit` wrote")
    _add_table(parser)
    parser.add_argument(
        "--annealing-steps",
        type=_count,
        default=1000,
        help="intermediate distributions for log Z; more give a narrower interval "
        "(1000)",
    )
    _add_seed_and_figures(parser)


def _add_sample(parser):
    parser.add_argument("model", type=Path, help="a file that `probjax fit` wrote")
    parser.add_argument("--num", type=_count, default=1000, help="rows (1000)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("samples.npy"),
        help="file, .npy or .csv (samples.npy)",
    )
    _add_seed(parser)


def _add_table(parser):
    parser.add_argument("data", type=Path, help="table: .npy, .npz, .csv or .tsv")
    parser.add_argument("--array", help="name of the array, for an .npz with several")


def _add_seed_and_figures(parser):
    _add_seed(parser)
    parser.add_argument("--figures", type=Path, help="folder for a figure")


def _add_seed(parser):
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of random numbers (0)"
    )


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text}")
    return int(text)


def _strength(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be finite and not negative, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
