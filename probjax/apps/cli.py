"""`probjax` on the command line: what may be asked for, and how trouble is told.

Exit codes are 0 if all went well, 1 for trouble on the way and 2 for a request or a
file that makes no sense. Trouble is one sentence, never a traceback.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from probjax import __version__
from probjax.apps.compilation_cache import programs_kept

_ABOUT = """Learn models of bits, spins and letters whose partition function is unknown.

  probjax fit spikes.npy --out model.npz      learn an Ising model of rows
  probjax evaluate model.npz held-out.npy     its log-likelihood, with log Z
  probjax sample model.npz --num 1000         rows drawn from it
  probjax demo                                a first look, in a minute

Tables are .npy, .npz, .csv or .tsv files with a row for each observation and a column
for each site. `probjax fit --help` and so on tell more, with examples."""

_FIT = """Learn a model without its partition function, and write it to a file.

Entries are bits, spins of -1 and 1, whole numbers from 0 (for --model potts) or text,
as A,C,G,T; a .csv may have a header, whose names the model keeps. The file written
holds arrays, and no pickle.

Couplings are J of E = x'Jx, where likely states x of 0 and 1 have a low energy E: a
positive J_ij means "seldom on together", and 2 J_ij is the energy of the pair. Those of
hopfield are of E = -x'Jx / 2 + theta'x, and have the other sign."""

_FIT_EXAMPLE = """examples:
  probjax fit spikes.npy
  probjax fit votes.csv --estimator pseudolikelihood --l1 0.01 --couplings J.csv
  probjax fit family.csv --model potts --l2 0.01 --figures out
  probjax fit digits.npz --array train --model rbm --hidden 50"""

_EVALUATE = """The mean log-likelihood of rows that were not fitted, in nats per row.

log Z is summed exactly where that takes at most 2^20 states, and else estimated from
both sides, which gives an interval: particles annealed towards the model, and others
back from the ends of Markov chains. It holds if those chains have reached all of the
model."""

_SAMPLE = """Rows drawn from a model, as they were called in the data.

They are independent if there are at most 2^20 states, else of up to 200 Markov chains,
of which every tenth state is kept after a thousand."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that was asked for, and return the exit code.

    >>> main(["fit", "no-such-table.csv"])  # says why on the standard error
    2
    """
    given = _parser().parse_args(argv)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        with nullcontext() if given.no_cache else programs_kept():
            code = _run(given)
    for said in dict.fromkeys(str(note.message) for note in notes):
        print(f"probjax: note: {said}", file=sys.stderr)
    return code


def _run(given: argparse.Namespace) -> int:
    try:
        _do(given)
    except ValueError as error:
        return _tell(error, 2)
    except KeyboardInterrupt:
        print("probjax: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return _tell(error, 1)
    return 0


def _do(given: argparse.Namespace) -> None:
    # Imported on call: help is to be quick.
    if given.command == "demo":
        from probjax.apps.demo import run

        run(given.out)
        return
    from probjax.apps import commands

    {"fit": commands.fit, "evaluate": commands.evaluate, "sample": commands.sample}[
        given.command
    ](given)


def _tell(error: Exception, code: int) -> int:
    said = (str(error) or type(error).__name__).splitlines()[0]
    print(f"probjax: {said}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="probjax",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"probjax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_fit(_command(commands, "fit", "learn a model of a table", _FIT, _FIT_EXAMPLE))
    example = "example:\n  probjax evaluate model.npz held-out.npy"
    about = "the log-likelihood of a table"
    _add_evaluate(_command(commands, "evaluate", about, _EVALUATE, example))
    example = "example:\n  probjax sample model.npz --num 1000 --out samples.csv"
    _add_sample(_command(commands, "sample", "draw rows", _SAMPLE, example))
    about = "fit a spin glass whose answer is known, and draw the outcome"
    demo = _command(commands, "demo", about, about, "example:\n  probjax demo")
    demo.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for the figure (./out)"
    )
    return parser


def _command(commands, name, brief, about, example):
    parser = commands.add_parser(
        name,
        help=brief,
        description=about,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="compile everything, and do not keep it for the next call",
    )
    return parser


def _add_fit(parser):
    _add_table(parser)
    parser.add_argument(
        "--model",
        choices=("ising", "potts", "rbm", "hopfield"),
        default="ising",
        help="bits in pairs (ising, the default; hopfield), letters in pairs (potts), "
        "or bits and hidden units (rbm)",
    )
    parser.add_argument(
        "--estimator",
        choices=("mpf", "pseudolikelihood", "likelihood"),
        help="minimum probability flow (mpf, the default but for an rbm, whose flow "
        "may have no minimum), pseudolikelihood (then), or exact likelihood for small "
        "models",
    )
    penalty = parser.add_mutually_exclusive_group()
    penalty.add_argument(
        "--l2", type=_strength, default=1e-4, help="strength of the penalty (1e-4)"
    )
    penalty.add_argument(
        "--l1", type=_strength, help="the same, for couplings that are exactly 0"
    )
    parser.add_argument("--hidden", type=_count, help="hidden units of an rbm (16)")
    parser.add_argument(
        "--states", type=_count, help="letters of a potts model (as the data have)"
    )
    parser.add_argument(
        "--max-steps", type=_count, default=2000, help="steps of descent at most (2000)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("model.npz"), help="file (model.npz)"
    )
    parser.add_argument(
        "--couplings",
        type=Path,
        help="a .csv to write couplings to, under the names of the sites: J, of ising "
        "with biases on the diagonal; contact scores of potts; weights of an rbm, a "
        "row for each hidden unit",
    )
    _add_rest(parser)


def _add_evaluate(parser):
    parser.add_argument("model", type=Path, help="what `probjax fit` wrote")
    _add_table(parser)
    parser.add_argument(
        "--annealing-steps",
        type=_count,
        default=1000,
        help="distributions on the way to log Z; more are narrower (1000)",
    )
    _add_rest(parser)


def _add_sample(parser):
    parser.add_argument("model", type=Path, help="what `probjax fit` wrote")
    parser.add_argument("--num", type=_count, default=1000, help="rows (1000)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("samples.npy"),
        help="file, .npy or .csv (samples.npy)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of random numbers (0)")


def _add_table(parser):
    parser.add_argument("data", type=Path, help="table: .npy, .npz, .csv or .tsv")
    parser.add_argument("--array", help="which array of an .npz with several")


def _add_rest(parser):
    parser.add_argument("--seed", type=int, default=0, help="of random numbers (0)")
    parser.add_argument("--figures", type=Path, help="folder to draw a figure in")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text}")
    return int(text)


def _strength(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must not be negative, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
