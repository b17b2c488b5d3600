"""Progress bars for long runs, drawn on the host between compiled chunks.

A bar says that the program is being compiled until the first chunk has come back, and
its rate is of what came after. Where no terminal is to be seen, as in a queue, nothing
is drawn, unless a `file` is given to draw to.
"""

import sys
from collections.abc import Callable
from typing import Any, TextIO

import jax
import jax.numpy as jnp

from probjax.annealing.annealed import Annealed
from probjax.annealing.marginal import RowsDone
from probjax.fitting import Progress
from probjax.samplers.run import Draws


def progress_bar(
    total: int | None = None, *, file: TextIO | None = None
) -> Callable[[Progress], None]:
    """A callback for `fit` that draws a tqdm bar: steps, loss and gradient norm.

    Args:
        total: the number of steps at which the bar is full, if there is one.
        file: where to draw even if it is no terminal, as `sys.stderr`.
    """
    advance = _bar(total, "step", file)

    def show(progress: Progress) -> None:
        advance(
            int(progress.step),
            f"loss {float(progress.loss):.6g}, "
            f"gradient {float(progress.gradient_norm):.2g}",
        )

    return show


def draws_bar(num_draws: int, *, file: TextIO | None = None) -> Callable[[Draws], None]:
    """A callback for `sample` that draws a tqdm bar: draws, and their acceptance."""
    advance = _bar(num_draws, "draw", file)
    made = 0

    def show(draws: Draws) -> None:
        nonlocal made
        made += jax.tree.leaves(draws.x)[0].shape[1]
        advance(made, f"accepted {float(jnp.mean(draws.info.accept)):.3f}")

    return show


def annealing_bar(
    num_steps: int, *, file: TextIO | None = None
) -> Callable[[Annealed], None]:
    """A callback for `ais` and its kin that draws a tqdm bar: distributions, and
    effective particles.

    Args:
        num_steps: of the first run; of others, as those of `ais_until`, it is seen.
    """
    advance = _bar(num_steps, "step", file)

    def show(annealed: Annealed) -> None:
        count, last = len(annealed.log_weights), len(annealed.plan.betas) - 1
        said = f"ESS {float(annealed.ess):.3g} of {count}"
        advance(int(annealed.particles.step), said, total=last)

    return show


def rows_bar(
    num_rows: int, *, file: TextIO | None = None
) -> Callable[[RowsDone], None]:
    """A callback for `marginal_log_likelihood` that draws a tqdm bar: rows, and their
    mean so far.
    """
    advance = _bar(num_rows, "row", file)

    def show(done: RowsDone) -> None:
        mean = f"log p {float(jnp.mean(done.per_row)):.6g}" if len(done.per_row) else ""
        advance(int(done.num_done), mean)

    return show


def _bar(total: int | None, unit: str, file: TextIO | None) -> Callable[..., None]:
    """What moves a bar to `number` and says something beside it."""
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("a progress bar needs tqdm: pip install tqdm") from error
    # A process without a terminal of its own may have nowhere to draw at all.
    seen = sys.stderr is not None and sys.stderr.isatty()
    silent = file is None and not seen
    bar: Any = tqdm(
        total=total, unit=unit, file=file, disable=silent, postfix="compiling"
    )
    waiting = True

    def advance(number: int, said: str, total: int | None = total) -> None:
        nonlocal waiting
        bar.total = total
        bar.set_postfix_str(said, refresh=False)
        if waiting and not silent:
            # The rate is of what is after `initial`, since `start_t`.
            bar.initial = bar.n = bar.last_print_n = number
            bar.start_t = bar.last_print_t = bar._time()
            bar.refresh()
        waiting = False
        bar.update(number - bar.n)

    return advance
