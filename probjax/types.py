"""The kinds of object the library is made of, and the helpers that make them.

A **function** is an energy, a score or a rule; a **recipe** has knobs; a **record**
holds states and results. `recipe` turns a class into a frozen dataclass that is also a
pytree: its numbers are traced, its functions and sizes are `static()`, so a recipe can
be rebuilt in a loop without compiling again. `closed_form` attaches to an energy what
is known of it beyond its value.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

__all__ = [
    "Array",
    "ArrayLike",
    "Base",
    "Bool",
    "Chart",
    "Connectivity",
    "Context",
    "Data",
    "Energy",
    "Float",
    "Gaps",
    "Info",
    "Neighbours",
    "Objective",
    "Params",
    "Penalty",
    "PRNGKeyArray",
    "PyTree",
    "Sampler",
    "Scalar",
    "State",
    "check_count",
    "closed_form",
    "closed_forms",
    "float_dtype",
    "floating",
    "holds",
    "is_concrete",
    "is_whole",
    "recipe",
    "static",
]

Params = PyTree
State = PyTree
Moves = PyTree
Scalar = Float[Array, ""]

Class = TypeVar("Class", bound=type)


def static(**options: Any) -> Any:
    """A recipe's field that is part of the program: a function or a size, hashable.

    What is static is no leaf, and no number that can be traced:

    >>> @recipe
    ... class Ladder:
    ...     height: float
    ...     rungs: int = static(default=3)
    >>> jax.tree.leaves(Ladder(2.0))
    [2.0]
    """
    return dataclasses.field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def recipe(cls: Class) -> Class:
    """Make `cls` a frozen dataclass and a pytree that compares by value.

    Fields made with `static()` are compared and hashed with the tree structure; all
    others are children, traced under `jit`. A Python number in a field annotated
    `float` becomes a float, so that `1` and `1.0` are the same program; tracers pass
    untouched.

    >>> @recipe
    ... class Ladder:
    ...     height: float
    ...     rungs: int = static(default=3)
    >>> Ladder(2)
    Ladder(height=2.0, rungs=3)
    >>> Ladder(2) == Ladder(2.0), Ladder(2) == Ladder(2.0, rungs=4)
    (True, False)
    """
    check = getattr(cls, "__post_init__", None)

    def complete(self):
        for field in fields:
            value = getattr(self, field.name)
            if _is_float(field.type) and isinstance(value, (int, np.number)):
                object.__setattr__(self, field.name, float(value))
        if check is not None:
            check(self)

    def equal(self, other):
        if type(self) is not type(other):
            return NotImplemented
        mine, form = jax.tree.flatten(self)
        theirs, other_form = jax.tree.flatten(other)
        return form == other_form and all(map(np.array_equal, mine, theirs))

    cls.__post_init__ = complete
    cls.__eq__ = equal  # pyright: ignore[reportAttributeAccessIssue]
    cls.__hash__ = None  # pyright: ignore[reportAttributeAccessIssue]
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    meta = [field.name for field in fields if field.metadata.get("static")]
    data = [field.name for field in fields if not field.metadata.get("static")]
    return jax.tree_util.register_dataclass(cls, data, meta)


def _is_float(annotation: Any) -> bool:
    return annotation is float or annotation == "float"


def closed_form(**forms: Callable[..., Any]) -> Callable[[Callable], Callable]:
    """Attach to an energy functions that say more cheaply what can be derived from it.

    Known names, each a function of `(params, x)` unless said otherwise:
    `flip_gaps` (E(x) - E(x with bit n flipped), for every n),
    `mirror_gap` (E(x) - E(1 - x)) and
    `site_gaps` (E(x) - E(x with site n set to a), for every n and every letter a).
    For sweeps over the sites, two are functions of `params` alone that return one of
    `(x, n)`, so that what depends on `params` is computed once:
    `flip_gap` (the gap of bit n) and `site_gap` (the gaps of site n, for every letter).
    `unbounded(params, data)` says in words what in the data leaves parameters without a
    finite estimate, "" if nothing is seen to, and `unnormalisable(params)` what keeps
    exp(-E) from having a finite integral, likewise.

    >>> from probjax import potential
    >>> def gaps(bias, x):
    ...     return bias * (2 * x - 1)
    >>> @closed_form(flip_gaps=gaps)
    ... def energy(bias, x):
    ...     return bias @ x
    >>> model = potential(energy, jnp.array([1.0, 3.0]))
    >>> model.flip_gaps(jnp.array([0.0, 1.0])).tolist()
    [-1.0, 3.0]
    """
    known = {"flip_gaps", "mirror_gap", "site_gaps", "flip_gap", "site_gap"}
    known |= {"unbounded", "unnormalisable"}
    if unknown := set(forms) - known:
        raise ValueError(f"closed forms are {sorted(known)}, got {sorted(unknown)}")

    def attach(energy):
        energy.closed_forms = types.MappingProxyType(forms)
        return energy

    return attach


def closed_forms(energy: Callable) -> Mapping[str, Callable]:
    """The closed forms attached to `energy`, empty for a plain function.

    >>> @closed_form(flip_gaps=lambda bias, x: bias * (2 * x - 1))
    ... def energy(bias, x):
    ...     return bias @ x
    >>> list(closed_forms(energy))
    ['flip_gaps']
    """
    return getattr(energy, "closed_forms", types.MappingProxyType({}))


def is_concrete(tree: PyTree) -> bool:
    """Whether the values in `tree` can be looked at, so that they can be checked."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def holds(test: Callable[[Array], Array], tree: PyTree) -> bool:
    """Whether `test` is true of all values in `tree` that can be looked at.

    `test` is compiled: a function of a module, not one made for the call.
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if is_concrete(leaf)]
    with jax.ensure_compile_time_eval():
        return all(bool(_all(test, jnp.asarray(leaf))) for leaf in leaves)


@partial(jax.jit, static_argnums=0)
def _all(test, leaf):
    return jnp.all(test(leaf))


def check_count(name: str, count: int, *, least: int = 1) -> None:
    """Refuse a count that is not an integer of at least `least`."""
    if not (isinstance(count, (int, np.integer)) and count >= least):
        raise ValueError(f"{name} must be an integer of at least {least}, got {count}")


def check_role(name: str, given: Any, does: str, example: str) -> None:
    """Refuse what has no `does`, as a class in place of its instance has not."""
    if isinstance(given, type) or not hasattr(given, does):
        kind = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        raise ValueError(f"{name} must be made as {example}, got {kind}")


def check_key(key: Any) -> None:
    """Refuse what no random numbers can be drawn by."""
    if not isinstance(key, jax.Array):
        raise ValueError(f"key must be made as jax.random.key(0), got {key!r}")


def is_whole(value: Array) -> Array:
    """Whether each value is a whole number."""
    return value == jnp.round(value)


def floating(values: ArrayLike) -> Array:
    """`values` as an array of floats: as they are if they are, else of the default."""
    values = jnp.asarray(values)
    return (
        values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(float)
    )


def float_dtype(tree: PyTree) -> np.dtype:
    """The floating dtype computations with `tree` are done in."""
    kinds = [jnp.result_type(leaf) for leaf in jax.tree.leaves(tree)]
    kinds = [kind for kind in kinds if jnp.issubdtype(kind, jnp.floating)]
    return jnp.result_type(*kinds) if kinds else jnp.result_type(float)


class Energy(Protocol):
    """`energy(params, x)` of one state; p(x) is proportional to exp(-energy).

    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> float(energy(2.0, jnp.array([1.0, 3.0])))
    10.0
    """

    def __call__(self, params: Params, x: State, /) -> Scalar: ...


class Data(NamedTuple):
    """Observed rows.

    >>> from probjax.annealing import fit_gaussian
    >>> rows = Data(jnp.array([[0.0], [4.0]]), weights=jnp.array([3.0, 1.0]))
    >>> fit_gaussian(rows).mean.tolist()
    [1.0]
    """

    x: State
    """The states, with a leading axis of rows."""
    weights: Float[Array, " row"] | None = None
    """How much each row counts; None for equally."""
    mask: PyTree = None
    """Which entries were observed, booleans shaped like `x`; None for all. Whatever
    stands in `x` where one was not makes no difference: see `probjax.missing`."""


class Context(NamedTuple):
    """What an objective keeps between the steps of a round.

    >>> from probjax import HutchinsonScoreMatching
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> objective = HutchinsonScoreMatching(energy, num_draws=5)
    >>> context = objective.init(jax.random.key(0), 1.0, Data(jnp.ones((4, 3))))
    >>> context.rows.shape, context.shared  # five directions for every row
    ((4, 5, 3), ())
    """

    rows: PyTree
    """Leaves with the data's leading axis; they follow the rows into minibatches."""
    shared: PyTree
    """What belongs to no row."""


class Neighbours(NamedTuple):
    """The states one state exchanges probability with.

    >>> from probjax import BitFlips
    >>> near = BitFlips().states(jnp.array([0.0, 1.0]), ())
    >>> near.x.tolist(), near.weight.tolist()
    ([[1.0, 1.0], [0.0, 0.0]], [1.0, 1.0])
    """

    x: State
    """Leaves with a leading axis of neighbours."""
    log_ratio: Float[Array, " k"]
    """log g(x|x') - log g(x'|x); zeros if the connectivity is symmetric."""
    weight: Float[Array, " k"]
    """What each counts: 1 where all neighbours are visited, 1/k where k are drawn,
    0 for an entry that is no neighbour."""


class Gaps(NamedTuple):
    """E(x) - E(x') + log_ratio for every neighbour x' of one state x.

    Neighbours are in the order of `Neighbours`; those of a site with several letters,
    which exclude each other, share a row: the shape is `(k,)` or `(site, letter)`.

    >>> from probjax import BitFlips, potential
    >>> def energy(bias, x):
    ...     return bias @ x
    >>> model = potential(energy, jnp.array([1.0, 3.0]))
    >>> BitFlips().gaps(model, jnp.array([0.0, 1.0]), ()).gap.tolist()
    [-1.0, 3.0]
    """

    gap: Float[Array, "..."]
    """Positive where the neighbour is likelier than the state."""
    weight: Float[Array, "..."]
    """As in `Neighbours`."""


class Connectivity(Protocol):
    """Which states exchange probability directly with a state.

    >>> from probjax import AllFlips
    >>> flips = AllFlips()
    >>> x = flips.prepare(jnp.array([[0, 1]]))[0]
    >>> moves = flips.draw(jax.random.key(0), None, x)
    >>> flips.states(x, moves).x.tolist()
    [[1.0, 0.0]]
    """

    def prepare(self, x: State) -> State:
        """Refuse data it is not made for; otherwise `x` as floating arrays."""
        ...

    def draw(self, key: PRNGKeyArray, potential: Any, x: State) -> Moves:
        """The random part of the neighbourhood of `x`; () if there is none."""
        ...

    def states(self, x: State, moves: Moves) -> Neighbours:
        """The neighbours themselves."""
        ...

    def gaps(self, potential: Any, x: State, moves: Moves) -> Gaps:
        """Their gaps, by a closed form of the energies where there is one."""
        ...


class Objective(Protocol):
    """A loss to be minimised: `reduce` over weighted rows of `row`, plus `rest`.

    `refresh` holds all randomness, so within a round the loss is a fixed function of
    `params`. `reduce(values, weights)` is a weighted mean of some transform of the
    values, so that blocks of rows combine: it reduces the blocks' results by their
    total weights.

    It may also have `unbounded(params, data)`, which says in words what has no finite
    estimate, and `minimised = False` if its value has no meaning, only its gradient.

    If it has `statistic(params, x)`, a vector of one row, and `of_mean(m)`, then that
    function of the weighted mean m over the rows of a step is added.

    >>> from probjax import ScoreMatching
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> objective, data = ScoreMatching(energy), Data(jnp.array([[2.0, 0.0]]))
    >>> context = objective.init(jax.random.key(0), 1.0, objective.prepare(1.0, data))
    >>> float(objective.row(1.0, data.x[0], context.rows))  # 4/2 - 2
    0.0
    """

    @property
    def reduce(self) -> Callable[[Array, Array], Scalar]: ...
    def prepare(self, params: Params, data: Data) -> Data: ...
    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context: ...
    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context: ...
    def row(self, params: Params, x: State, context: PyTree) -> Scalar: ...
    def rest(self, params: Params, shared: PyTree) -> Scalar: ...


class Info(NamedTuple):
    """What a step of a sampler tells of itself.

    >>> steps = Info(accept=jnp.array([1.0, 0.0, 1.0, 1.0]))  # as draws.info of a chain
    >>> float(steps.accept.mean())
    0.75
    """

    accept: Scalar
    """The share of proposals that were accepted; 1 where nothing is rejected."""


class Sampler(Protocol):
    """A Markov chain that leaves exp(-potential) unchanged, one state at a time.

    A sampler's state has the current state as its `x`, and may keep what it knows of
    it, which holds for all weights of a potential but not for other parameters: after
    those have moved, `init` anew. A sampler whose chain does not go on from a draw of
    the model by that, as it keeps more than can be drawn anew, has `resumable = False`.

    >>> from probjax import HeatBath, ising, potential
    >>> model = potential(ising.energy, ising.from_matrix([[-99.0]]))
    >>> x = HeatBath().prepare(model, jnp.array([[0]]))[0]
    >>> state = HeatBath().init(jax.random.key(0), model, x)
    >>> state, info = HeatBath().step(jax.random.key(1), model, state)
    >>> state.x.tolist()
    [1.0]
    """

    def prepare(self, potential: Any, x: State) -> State:
        """Refuse a model or starts it is not made for; else `x` as floating arrays."""
        ...

    def init(self, key: PRNGKeyArray, potential: Any, x: State) -> Any: ...
    def step(self, key: PRNGKeyArray, potential: Any, state: Any) -> tuple[Any, Any]:
        """The next state of the chain, and an `Info` or a record with as much."""
        ...


class Base(Protocol):
    """A distribution p(x) = exp(-energy(x) - log_z) that can be drawn from.

    >>> from probjax import Laplace
    >>> base = Laplace(2, scale=0.5)
    >>> float(base.log_z), float(base.energy(jnp.array([1.0, -1.0])))
    (0.0, 4.0)
    """

    @property
    def log_z(self) -> Scalar: ...
    def prepare(self, x: State) -> State:
        """Refuse rows it is no distribution of; otherwise `x` as floating arrays."""
        ...

    def sample(self, key: PRNGKeyArray) -> State: ...
    def energy(self, x: State) -> Scalar: ...


class Penalty(Protocol):
    """A term added to any loss, with the map that makes non-smooth ones tractable.

    >>> @recipe
    ... class AboveZero:
    ...     smooth: ClassVar[bool] = False
    ...     def value(self, params):
    ...         return jnp.where((params < 0).any(), jnp.inf, 0.0)
    ...     def prox(self, params, step):
    ...         return jnp.maximum(params, 0)
    >>> AboveZero().prox(jnp.array([1.0, -2.0]), 0.1).tolist()
    [1.0, 0.0]
    """

    smooth: ClassVar[bool]

    def value(self, params: Params) -> Scalar: ...
    def prox(self, params: Params, step: Scalar) -> Params:
        """Argmin over q of |q - params|^2 / 2 + step * value(q)."""
        ...


class Chart(Protocol):
    """The coordinates in which descent happens.

    >>> @recipe
    ... class Cubes:
    ...     def forward(self, params):
    ...         return jnp.cbrt(params)
    ...     def inverse(self, coordinates):
    ...         return coordinates**3
    >>> Cubes().inverse(jnp.array([1.0, 2.0])).tolist()
    [1.0, 8.0]
    """

    def forward(self, params: Params) -> PyTree: ...
    def inverse(self, coordinates: PyTree) -> Params: ...
