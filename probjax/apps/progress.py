"""Progress bars for long runs, drawn on the host between compiled pieces.

A bar shows "compiling" until the first piece has returned, and its rate counts only
what came after. Without a terminal, such as in a batch queue, nothing is drawn unless a
`file` is given.
"""

import math
import sys
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple, TextIO

import jax
import jax.numpy as jnp

from probjax.annealing.estimate import Annealed
from probjax.annealing.marginal import RowsDone
from probjax.fitting.stopping import Progress
from probjax.samplers.draws import Draws


class _Reading(NamedTuple):
    """Position of a bar, and the text beside it.

    Attributes:
        position: the number of units done so far.
        note: the text beside the bar.
        total: the number of units in all; None if the record does not contain it.
        unit: the name of one unit.
    """

    position: int
    note: str
    total: int | None
    unit: str


def progress_bar(
    total: int | None = None, *, file: TextIO | None = None
) -> Callable[[Any], None]:
    """Callback that draws a tqdm bar, for `fit`, `sample`, `ais` and the other drivers.

    It shows steps, loss, gradient norm and distance of a fit; draws and acceptance of
    `sample`; intermediate distributions and effective particles of `ais`; rows and
    their mean of `marginal_log_likelihood`.

    Args:
        total: the number of steps, draws or rows at which the bar is full. Annealing
            and `marginal_log_likelihood` report it themselves.
        file: where to draw, even if it is not a terminal, such as `sys.stderr`.

    >>> import io
    >>> file = io.StringIO()
    >>> show = progress_bar(100, file=file)  # for fit(..., watch=Watch(show))
    >>> show(Progress(0, 50, loss=0.25, gradient_norm=0.1, params=(), shared=()))
    >>> "50/100" in file.getvalue(), "loss 0.25" in file.getvalue()
    (True, True)

    >>> from probjax import Bernoulli, HeatBath, Watch, ais, ising
    >>> flat = ising.from_matrix(jnp.zeros((2, 2)))
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> args = jax.random.key(0), ising.energy, flat, Bernoulli(2)
    >>> _ = ais(*args, watch=Watch(progress_bar(file=file)), **options)
    >>> "20/20" in file.getvalue(), "ESS 100 of 100" in file.getvalue()
    (True, True)
    """
    advance = _bar(total, file)
    position = 0

    def show(record: Any) -> None:
        nonlocal position
        reading = _reading(record, position)
        position = reading.position
        advance(reading)

    return show


@singledispatch
def _reading(record: Any, before: int) -> _Reading:
    """Reading of a bar for what a driver reports, after `before` units."""
    raise TypeError(f"a progress bar cannot show a {type(record).__name__}")


@_reading.register
def _(record: Progress, before: int) -> _Reading:
    note = f"loss {float(record.loss):.6g}, gradient {float(record.gradient_norm):.2g}"
    if math.isfinite(distance := float(record.distance)):
        note += f", {distance:.2g} standard errors from the minimum"
    return _Reading(int(record.step), note, None, "step")


@_reading.register
def _(record: Draws, before: int) -> _Reading:
    made = before + jax.tree.leaves(record.x)[0].shape[1]
    accepted = f"accepted {float(jnp.mean(record.info.accept)):.3f}"
    return _Reading(made, accepted, None, "draw")


@_reading.register
def _(record: Annealed, before: int) -> _Reading:
    note = f"ESS {float(record.ess):.3g} of {len(record.log_weights)}"
    last = int(record.schedule.length)
    return _Reading(int(record.particles.step), note, last, "step")


@_reading.register
def _(record: RowsDone, before: int) -> _Reading:
    rows = record.per_row
    note = f"log p {float(jnp.mean(rows)):.6g}" if len(rows) else ""
    return _Reading(int(record.num_done), note, record.num_rows, "row")


def _bar(total: int | None, file: TextIO | None) -> Callable[[_Reading], None]:
    """Function that moves a new bar to a reading."""
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("a progress bar needs tqdm: pip install tqdm") from error
    # A process without a terminal may have no standard error at all.
    visible = sys.stderr is not None and sys.stderr.isatty()
    silent = file is None and not visible
    bar: Any = tqdm(total=total, file=file, disable=silent, postfix="compiling")
    waiting = True

    def advance(reading: _Reading) -> None:
        nonlocal waiting
        bar.unit = reading.unit
        bar.total = reading.total if reading.total is not None else total
        bar.set_postfix_str(reading.note, refresh=False)
        if waiting and not silent:
            # tqdm computes its rate from `initial` and `start_t`.
            bar.initial = bar.n = bar.last_print_n = reading.position
            bar.start_t = bar.last_print_t = bar._time()
            bar.refresh()
        waiting = False
        bar.update(reading.position - bar.n)

    return advance
