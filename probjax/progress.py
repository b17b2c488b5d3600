"""Progress bars for long runs, drawn on the host between compiled chunks."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from probjax.annealing.annealed import Annealed
from probjax.annealing.marginal import RowsDone
from probjax.fitting import Progress
from probjax.samplers.run import Draws


def progress_bar(total: int | None = None) -> Callable[[Progress], None]:
    """A callback for `fit` that draws a tqdm bar: steps, loss and gradient norm.

    Args:
        total: the number of steps at which the bar is full, if there is one.
    """
    bar = _bar(total, "step")

    def show(progress: Progress) -> None:
        bar.set_postfix_str(
            f"loss {float(progress.loss):.6g}, "
            f"gradient {float(progress.gradient_norm):.2g}",
            refresh=False,
        )
        bar.update(int(progress.step) - bar.n)

    return show


def draws_bar(num_draws: int) -> Callable[[Draws], None]:
    """A callback for `sample` that draws a tqdm bar: draws, and their acceptance."""
    bar = _bar(num_draws, "draw")

    def show(draws: Draws) -> None:
        accept = float(jnp.mean(draws.info.accept))
        bar.set_postfix_str(f"accepted {accept:.3f}", refresh=False)
        bar.update(jax.tree.leaves(draws.x)[0].shape[1])

    return show


def annealing_bar(num_steps: int) -> Callable[[Annealed], None]:
    """A callback for `ais` and its kin that draws a tqdm bar: distributions, and
    effective particles.

    Args:
        num_steps: of the first run; of others, as those of `ais_until`, it is seen.
    """
    bar = _bar(num_steps, "step")

    def show(annealed: Annealed) -> None:
        count = len(annealed.log_weights)
        bar.total = len(annealed.plan.betas) - 1
        bar.set_postfix_str(f"ESS {float(annealed.ess):.3g} of {count}", refresh=False)
        bar.update(int(annealed.particles.step) - bar.n)

    return show


def rows_bar(num_rows: int) -> Callable[[RowsDone], None]:
    """A callback for `marginal_log_likelihood` that draws a tqdm bar: rows, and their
    mean so far.
    """
    bar = _bar(num_rows, "row")

    def show(done: RowsDone) -> None:
        if len(done.per_row):
            mean = float(jnp.mean(done.per_row))
            bar.set_postfix_str(f"log p {mean:.6g}", refresh=False)
        bar.update(int(done.num_done) - bar.n)

    return show


def _bar(total: int | None, unit: str) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("a progress bar needs tqdm: pip install tqdm") from error
    # A process without a terminal of its own may have nowhere to draw at all.
    return tqdm(total=total, unit=unit, disable=sys.stderr is None)
