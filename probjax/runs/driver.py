"""Host loop of all drivers.

A driver checks its arguments, describes its work as a `Job` and passes it to `run`:

    begin -> advance -> report to the callback -> write a checkpoint -> ... -> finish

Without a `Watch` a run is one `advance` to the end that never returns to the host, so
that drivers can be jitted and vmapped. A composed driver is a sequence of jobs, each
made from the results of the previous jobs: see `run_in_turn`.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer

from probjax.checks import check_count, is_concrete
from probjax.devices import on_mesh
from probjax.recipe import recipe, static
from probjax.runs.checkpoint import Checkpoint, open_checkpoint
from probjax.runs.digest import canonical
from probjax.trees import copied

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Arguments that are compiled into a program. Equal values of them share one program;
# data and callbacks are never replaced by equal ones.
_PROGRAM = {"energy", "joint", "objective", "optimizer", "penalty", "chart", "stop"}
_PROGRAM |= {"sampler", "statistic", "base", "path", "pilot", "scores"}


@recipe
class Watch:
    """Callback and checkpoint of a running driver: `fit(..., watch=Watch(show))`.

    Args:
        callback: function that is called with the driver's report after every `every`
            steps. The run stops if it returns True.
        every: number of steps between reports, counted over the whole run: steps of a
            fit, draws of chains, distributions of annealing. None for the driver's
            default.
        checkpoint: file in which the run is saved between reports. If the run was
            killed or stopped, the same call continues it, with bit-identical results.

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
    """Computation of a driver that advances step by step."""

    begin: Callable[[], Any]
    """Return the first state."""
    advance: Callable[[Any, int | None], Any]
    """Return the state after at most the given number of steps; None: at the end.

    Compiled pieces overwrite the state that they are given, so that memory holds one
    state and not two. So a job must not begin with arrays of the user, and nothing may
    be read from a state after `advance`.
    """
    is_over: Callable[[Any], bool]
    """Return whether the computation is complete."""
    report: Callable[[Any], Any]
    """Return the report for the callback; None if there is nothing to report yet."""
    finish: Callable[[Any, bool], Any]
    """Return the driver's result, given whether a callback stopped the run."""
    every: int = 100
    """Number of steps between reports if `Watch.every` is None."""
    may_stop: bool = True
    """Whether a callback may stop the run before its end."""


def run(name: str, arguments: Mapping[str, Any], job: Job, watch: Watch | None) -> Any:
    """Run one job and return its result; see `run_in_turn` for the arguments."""

    def next_job(results):
        return None if results else job

    return run_in_turn(name, arguments, next_job, watch)[-1]


def run_in_turn(
    name: str,
    arguments: Mapping[str, Any],
    next_job: Callable[[list], Job | None],
    watch: Watch | None,
) -> list:
    """Run jobs one after the other and return their results.

    A checkpoint holds the final states of the finished jobs and the state of the
    current job.

    Args:
        name: name of the driver, for messages and checkpoints.
        arguments: arguments of its call, defaults included, with which a checkpoint is
            matched.
        next_job: function that returns the next job, given the results so far; None
            after the last job.
        watch: callback and checkpoint; None to never return to the host.
    """
    if not isinstance(watch, Watch | None):
        raise ValueError(f"watch must be a Watch, got {watch!r}; try Watch(callback)")
    results: list = []
    if watch is None:
        while (job := next_job(results)) is not None:
            results.append(job.finish(job.advance(job.begin(), None), False))
        return results
    arguments = {key: value for key, value in arguments.items() if key != "watch"}
    if not is_concrete(arguments):
        raise ValueError(
            f"{name} inside jit or vmap must not be given a watch, which acts on the "
            "host between compiled pieces; try watch=None"
        )
    with _open(watch.checkpoint, name, arguments) as saved:
        states: list = []
        while (job := next_job(results)) is not None:
            state, stopped = _run_job(name, job, watch, saved, states)
            states.append(state)
            results.append(job.finish(state, stopped))
            if stopped:
                break
    return results


def _run_job(name, job, watch, saved, before):
    """Advance one job to its end, with reports and checkpoints.

    `before` are the final states of the jobs before it. Returns its final state, and
    whether the callback stopped it.
    """
    index = len(before)
    found = index < saved.count
    state = saved.restore(index, job.begin) if found else job.begin()
    stopped = False
    if not found and job.is_over(state):
        stopped = _call_back(name, job, watch, state)
        saved.write([*before, state], last=True)
    while not (stopped or job.is_over(state)):
        state = job.advance(state, watch.every or job.every)
        stopped = _call_back(name, job, watch, state)
        saved.write([*before, state], last=stopped or job.is_over(state))
    return state, stopped


def _call_back(name, job, watch, state):
    """Call the callback, and return whether it stops the run.

    The callback may keep its report, whose arrays are copies.
    """
    if watch.callback is None or (report := job.report(state)) is None:
        return False
    stopped = bool(watch.callback(copied(report)))
    if stopped and not job.may_stop:
        raise ValueError(
            f"{name} has no result before its end, so its callback must not return True"
        )
    return stopped


class _NoCheckpoint:
    """Replacement for `OpenCheckpoint` in runs without a checkpoint."""

    count = 0

    def write(self, states: list, last: bool = False) -> None:
        pass


def _open(checkpoint, name, arguments) -> Any:
    if checkpoint is None:
        return nullcontext(_NoCheckpoint())
    return open_checkpoint(checkpoint, name, arguments)


def driver(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a driver, so that it uses the mesh, full precision and few programs.

    A driver runs on the mesh of its arguments, or on that of the context (see
    `probjax.devices`). Its matrix products have full float32 precision on every
    platform unless the user has set another precision. Equal closures and optimizers,
    such as an optax optimizer that is built again, share compiled programs.
    """
    signature = inspect.signature(function)
    names = list(signature.parameters)

    def shared(name, value):
        return canonical(value) if name in _PROGRAM else value

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if names[0] == "key" and args and not isinstance(args[0], jax.Array):
            _check_missing_key(function.__name__, signature, args, kwargs)
        # Surplus positional arguments are passed on, so that Python raises its error.
        firsts: Any = map(shared, names + [""] * len(args), args)
        others: Any = {name: shared(name, value) for name, value in kwargs.items()}
        with full_precision():
            return on_mesh(function, *firsts, **others)

    return call


def _check_missing_key(name, signature, args, kwargs):
    """Raise if an argument is missing because the key was forgotten."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"{name} requires a random key as its first argument, got "
            f"{type(args[0]).__name__}; try {name}(jax.random.key(0), ...)"
        ) from error


def undifferentiable(
    remedy: str,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a driver that has no derivative, so that `jax.grad` and `jax.jvp` raise.

    Args:
        remedy: advice in the error, after "cannot be differentiated".
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        message = f"{function.__name__} cannot be differentiated: {remedy}"

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            args, kwargs = _without_gradient(message, (args, kwargs))
            # An energy may have captured what is differentiated.
            return _without_gradient(message, function(*args, **kwargs))

        return call

    return decorate


def _without_gradient(message: str, tree: Any) -> Any:
    """Tree whose traced numbers raise when they are differentiated."""

    def convert(leaf):
        is_number = isinstance(leaf, Tracer) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        return _constant(message, leaf) if is_number else leaf

    return tree if is_concrete(tree) else jax.tree.map(convert, tree)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _constant(message, value):
    return value


@_constant.defjvp
def _refuse_derivative(message, primals, tangents):
    raise ValueError(message)


@contextmanager
def full_precision() -> Iterator[None]:
    """Context manager for full float32 precision, unless the user has set another."""
    if jax.config.jax_default_matmul_precision is not None:  # pyright: ignore
        yield
        return
    with jax.default_matmul_precision("highest"):
        yield
