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

from probjax.annealing.estimate import Annealed
from probjax.annealing.marginal import RowsDone
from probjax.fitting.stopping import Progress
from probjax.samplers.sample import Draws


def progress_bar(
    total: int | None = None, *, file: TextIO | None = None
) -> Callable[[Progress], None]:
    """A callback for `fit` that draws a tqdm bar: steps, loss and gradient norm.

    Args:
        total: the number of steps at which the bar is full, if there is one.
        file: where to draw even if it is no terminal, as `sys.stderr`.

    >>> import io
    >>> file = io.StringIO()
    >>> show = progress_bar(100, file=file)  # for fit(..., watch=Watch(show))
    >>> show(Progress(0, 50, loss=0.25, gradient_norm=0.1, params=(), shared=()))
    >>> "50/100" in file.getvalue(), "loss 0.25" in file.getvalue()
    (True, True)
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
    """A callback for `sample` that draws a tqdm bar: draws, and their acceptance.

    >>> import io
    >>> from probjax.types import Info
    >>> file = io.StringIO()
    >>> show = draws_bar(100, file=file)  # for sample(..., watch=Watch(show))
    >>> show(Draws(jnp.zeros((4, 50, 2)), Info(jnp.ones(())), state=(), step=50))
    >>> "50/100" in file.getvalue(), "accepted 1.000" in file.getvalue()
    (True, True)
    """
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

    >>> import io
    >>> from probjax import Bernoulli, HeatBath, Watch, ais, ising
    >>> file, flat = io.StringIO(), ising.from_matrix(jnp.zeros((2, 2)))
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> args = jax.random.key(0), ising.energy, flat, Bernoulli(2)
    >>> _ = ais(*args, watch=Watch(annealing_bar(20, file=file)), **options)
    >>> "20/20" in file.getvalue(), "ESS 100 of 100" in file.getvalue()
    (True, True)
    """
    advance = _bar(num_steps, "step", file)

    def show(annealed: Annealed) -> None:
        count, last = len(annealed.log_weights), int(annealed.plan.length)
        said = f"ESS {float(annealed.ess):.3g} of {count}"
        advance(int(annealed.particles.step), said, total=last)

    return show


def rows_bar(
    num_rows: int, *, file: TextIO | None = None
) -> Callable[[RowsDone], None]:
    """A callback for `marginal_log_likelihood` that draws a tqdm bar: rows, and their
    mean so far.

    >>> import io
    >>> file = io.StringIO()
    >>> show = rows_bar(4, file=file)  # for a Watch of marginal_log_likelihood
    >>> show(RowsDone(num_rows=4, num_done=2.0, per_row=jnp.array([-1.0, -3.0])))
    >>> "2/4" in file.getvalue(), "log p -2" in file.getvalue()
    (True, True)
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
