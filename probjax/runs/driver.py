"""The host loop behind every long computation.

A driver checks its arguments, describes its work as a `Job`, and hands it to `run`:

    begin -> advance -> report to the callback -> write a checkpoint -> ... -> finish

Without a `Watch` a run is one `advance` to the end that never returns to the host, so
that drivers can be jitted and vmapped. A composed driver is a sequence of jobs, each
made from the results of those before: see `run_in_turn`.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax

from probjax.checks import check_count, is_concrete
from probjax.devices import on_mesh
from probjax.recipe import recipe, static
from probjax.runs.checkpoint import Checkpoint, opened
from probjax.runs.digest import canonical

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Arguments that are part of a program; data and callbacks must not be interchanged.
_PROGRAM = {"energy", "joint", "objective", "optimizer", "penalty", "chart", "stop"}
_PROGRAM |= {"sampler", "statistic", "base", "path", "pilot", "scores"}


@recipe
class Watch:
    """What happens on the host while a driver runs: `fit(..., watch=Watch(show))`.

    Args:
        callback: called with the driver's report after every `every` steps. The run
            ends if it returns True.
        every: steps between reports, counted over the whole run: steps of a fit, draws
            of chains, distributions of annealing. None for the driver's own default.
        checkpoint: file in which the run is saved between reports, so that the same
            call continues it, to the bit, if it was killed or stopped.

    >>> from probjax import ScoreMatching, fit
    >>> def energy(mean, x):
    ...     return jax.numpy.sum((x - mean) ** 2) / 2
    >>> def show(progress):
    ...     print(f"step {int(progress.step)}")
    >>> args = jax.random.key(0), ScoreMatching(energy), 0.0, jax.numpy.array([[2.0]])
    >>> found = fit(*args, watch=Watch(show, every=1))  # doctest: +ELLIPSIS
    step 1
    ...
    """

    callback: Callable[[Any], Any] | None = static(default=None)
    every: int | None = static(default=None)
    checkpoint: Checkpoint | None = static(default=None)

    def __post_init__(self):
        if self.callback is not None and not callable(self.callback):
            raise ValueError(f"callback must be a function, got {self.callback!r}")
        if self.every is not None:
            check_count("every", self.every)
        if not isinstance(self.checkpoint, Checkpoint | None):
            raise ValueError(
                "checkpoint must be a Checkpoint, got "
                f"{self.checkpoint!r}; try Checkpoint('run.npz')"
            )


class Job(NamedTuple):
    """A computation that advances step by step."""

    begin: Callable[[], Any]
    """Return the first state."""
    advance: Callable[[Any, int | None], Any]
    """Return the state at most so many steps later; None for the end."""
    is_over: Callable[[Any], bool]
    """Return whether nothing is left to do."""
    report: Callable[[Any], Any]
    """Return what a callback receives; None if there is nothing to report yet."""
    finish: Callable[[Any, bool], Any]
    """Return the driver's result, given whether a callback stopped the run."""
    every: int = 100
    """Steps between reports unless a `Watch` says otherwise."""
    may_stop: bool = True
    """Whether a callback may stop the run before its end."""


def run(name: str, arguments: Mapping[str, Any], job: Job, watch: Watch | None) -> Any:
    """Carry out one job and return its result; see `run_in_turn` for the arguments."""

    def next_job(results):
        return None if results else job

    return run_in_turn(name, arguments, next_job, watch)[-1]


def run_in_turn(
    name: str,
    arguments: Mapping[str, Any],
    next_job: Callable[[list], Job | None],
    watch: Watch | None,
) -> list:
    """Carry out jobs one after the other and return their results.

    A checkpoint holds the last states of the jobs that are finished and the current
    state of the next one.

    Args:
        name: name of the driver, for messages and checkpoints.
        arguments: arguments of its call, defaults included, by which a checkpoint is
            recognised.
        next_job: returns the job that follows given results, None if there is none.
    """
    if not isinstance(watch, Watch | None):
        raise ValueError(f"watch must be a Watch, got {watch!r}; try Watch(callback)")
    results: list = []
    if watch is None:
        while (job := next_job(results)) is not None:
            results.append(job.finish(job.advance(job.begin(), None), False))
        return results
    asked = {key: value for key, value in arguments.items() if key != "watch"}
    if not is_concrete(asked):
        raise ValueError(
            f"{name} inside jit or vmap must not be given a watch, which acts on the "
            "host between compiled pieces"
        )
    with _saved(watch.checkpoint, name, asked) as saved:
        states: list = []
        while (job := next_job(results)) is not None:
            state, stopped = _watched(name, job, watch, saved, states)
            states.append(state)
            results.append(job.finish(state, stopped))
            if stopped:
                break
    return results


def _watched(name, job, watch, saved, before):
    """Advance one job to its end, with reports and checkpoints on the way."""
    number = len(before)
    found = number < saved.count
    state = saved.restore(number, job.begin) if found else job.begin()
    stopped = False
    if not found and job.is_over(state):
        stopped = _reported(name, job, watch, state)
        saved.write([*before, state], last=True)
    while not (stopped or job.is_over(state)):
        state = job.advance(state, watch.every or job.every)
        stopped = _reported(name, job, watch, state)
        saved.write([*before, state], last=stopped or job.is_over(state))
    return state, stopped


def _reported(name, job, watch, state):
    """Call the callback, and return whether it stops the run."""
    if watch.callback is None or (report := job.report(state)) is None:
        return False
    stopped = bool(watch.callback(report))
    if stopped and not job.may_stop:
        raise ValueError(
            f"{name} has no result before its end: its callback must not return True"
        )
    return stopped


class _Unsaved:
    """Stands in for a checkpoint file where there is none."""

    count = 0

    def write(self, states: list, last: bool = False) -> None:
        pass


def _saved(checkpoint, name, arguments) -> Any:
    if checkpoint is None:
        return nullcontext(_Unsaved())
    return opened(checkpoint, name, arguments)


def driver(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run `function` as a driver: on the right mesh, in full precision, compiled once.

    It runs on the mesh that its arguments lie on, or that of the context (see
    `probjax.devices`). Matrix products have full float32 precision on every platform
    unless the user has set another. Equal closures and optimizers, such as an optax
    optimizer that is built again, share compiled programs.
    """
    names = list(inspect.signature(function).parameters)

    def shared(name, value):
        return canonical(value) if name in _PROGRAM else value

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # More arguments than there are names are left for Python to refuse.
        firsts: Any = map(shared, names + [""] * len(args), args)
        others: Any = {name: shared(name, value) for name, value in kwargs.items()}
        with full_precision():
            return on_mesh(function, *firsts, **others)

    return call


@contextmanager
def full_precision() -> Iterator[None]:
    """Context of full float32 precision, unless the user has set another."""
    if jax.config.jax_default_matmul_precision is not None:  # pyright: ignore
        yield
        return
    with jax.default_matmul_precision("highest"):
        yield
