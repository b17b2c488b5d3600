"""Records that functions of the library exchange, and aliases for annotations.

`Data` holds rows, `Conditioned` a state with its inputs, `Context` the state that an
objective keeps between steps, `Neighbours` and `Gaps` the neighbourhood of a state, and
`Info` the report of one step of a sampler.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from probjax.trees import floating

__all__ = [
    "Array",
    "ArrayLike",
    "Bool",
    "Conditioned",
    "Context",
    "Data",
    "Domain",
    "Energy",
    "Float",
    "Gaps",
    "Info",
    "Int",
    "Neighbours",
    "Params",
    "PRNGKeyArray",
    "PyTree",
    "Scalar",
    "State",
    "UnitLosses",
]

Params = PyTree
State = PyTree
Moves = PyTree
Scalar = Float[Array, ""]

Domain = Literal["any", "bits", "letters", "reals", "mixed"]
"""Kind of states: "bits" are entries 0 and 1, "letters" are entries 0 to q - 1, "reals"
are floating numbers, and "mixed" states combine several of these. "any" means that the
kind is unknown or does not matter."""


class Energy(Protocol):
    """`energy(params, x)` of one state; p(x) is proportional to exp(-energy).

    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> float(energy(2.0, jnp.array([1.0, 3.0])))
    10.0
    """

    def __call__(self, params: Params, x: State, /) -> Scalar: ...


class Conditioned(NamedTuple):
    """A state, and inputs on which its distribution depends.

    An energy of such states defines p(x | inputs). It reads both fields, whereas
    samplers and connectivities change `x` only: inputs are covariates, the state one
    step before, or the known part of an image. Rows of data and starts of chains are a
    `Conditioned` whose leaves have a leading axis.

    >>> from probjax import PseudoLikelihood, loss
    >>> def energy(weights, row):
    ...     return -(row.inputs @ weights) * row.x.sum()
    >>> rows = Conditioned(jnp.array([[1.0], [0.0]]), inputs=jnp.array([[2.0], [1.0]]))
    >>> args = jax.random.key(0), PseudoLikelihood(energy), jnp.zeros(1), rows
    >>> round(float(loss(*args)), 4)  # log 2
    0.6931
    """

    x: State
    """State, or the states of rows."""
    inputs: PyTree
    """Inputs, any tree of arrays, or of their rows."""


def split_inputs(rows: State) -> tuple[State, PyTree]:
    """Return states and their inputs; the inputs are None if there are none.

    >>> split_inputs(Conditioned("state", "inputs")), split_inputs("state")
    (('state', 'inputs'), ('state', None))
    """
    return tuple(rows) if isinstance(rows, Conditioned) else (rows, None)


def with_inputs(x: State, inputs: PyTree) -> State:
    """Return states together with their inputs, the inverse of `split_inputs`."""
    return x if inputs is None else Conditioned(x, inputs)


def map_states(function: Callable[[State], State], rows: State) -> State:
    """Apply a function to states, and leave their inputs as they are."""
    x, inputs = split_inputs(rows)
    return with_inputs(function(x), inputs)


class Data(NamedTuple):
    """Observed rows.

    >>> from probjax.bases import fit_gaussian
    >>> rows = Data(jnp.array([[0.0], [4.0]]), weights=jnp.array([3.0, 1.0]))
    >>> fit_gaussian(rows).mean.tolist()
    [1.0]
    """

    x: State
    """States of the rows; every leaf has a leading axis of rows. States with inputs are
    a `Conditioned`."""
    weights: Float[Array, " row"] | None = None
    """Nonnegative weight of each row; None if all rows have weight 1."""
    mask: PyTree = None
    """Booleans shaped like the states, True for observed entries; None if all are
    observed. Inputs are always observed. Values of states at missing entries are
    ignored: see `probjax.objectives.missing`."""


class Context(NamedTuple):
    """State that an objective keeps between the steps of a round.

    >>> from probjax.objectives import HutchinsonScoreMatching
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> objective = HutchinsonScoreMatching(energy, num_draws=5)
    >>> context = objective.init(jax.random.key(0), 1.0, Data(jnp.ones((4, 3))))
    >>> context.rows.shape, context.shared  # five directions for every row
    ((4, 5, 3), ())
    """

    rows: PyTree
    """State of each row, with the data's leading axis; minibatches take the entries of
    their rows."""
    shared: PyTree
    """State that does not belong to single rows, such as particles."""


class Neighbours(NamedTuple):
    """States that exchange probability with one state.

    >>> from probjax.connectivity import BitFlips
    >>> near = BitFlips().states(jnp.array([0.0, 1.0]), ())
    >>> near.x.tolist(), near.weight.tolist()
    ([[1.0, 1.0], [0.0, 0.0]], [1.0, 1.0])
    """

    x: State
    """Neighbours x'; every leaf has a leading axis of neighbours."""
    log_ratio: Float[Array, " k"]
    """log g(x|x') - log g(x'|x); zeros if the connectivity is symmetric."""
    weight: Float[Array, " k"]
    """Weight of each neighbour: 1 if all neighbours are listed, 1/k if k are drawn, and
    0 for an entry that is not a neighbour, such as the state itself."""


class Gaps(NamedTuple):
    """E(x) - E(x') + log_ratio for every neighbour x' of one state x.

    Neighbours are in the order of `Neighbours`. The shape is `(k,)`, or `(site,
    letter)` for sites with several letters: neighbours at one site exclude each other.

    >>> from probjax.connectivity import BitFlips
    >>> from probjax.potential import potential
    >>> def energy(bias, x):
    ...     return bias @ x
    >>> model = potential(energy, jnp.array([1.0, 3.0]))
    >>> BitFlips().gaps(model, jnp.array([0.0, 1.0]), ()).gap.tolist()
    [-1.0, 3.0]
    """

    gap: Float[Array, "..."]
    """Log ratio of the two probabilities, positive if the neighbour is more likely than
    the state (with the correction `log_ratio`)."""
    weight: Float[Array, "..."]
    """Weight of each neighbour, as in `Neighbours`."""


class SiteBlock(NamedTuple):
    """Conditional distributions of consecutive sites, if sites interact in pairs."""

    field: Float[Array, "site *letter"]
    """Log odds of each bit being 1, or log probability of each letter at each site up
    to a constant, given all other sites."""
    coupling: Float[Array, "site ..."]
    """Array that each site of the block adds to `field` if its bit is 1, or for each of
    its letters; 0 for the site itself."""


class Info(NamedTuple):
    """Report of one step of a sampler; None for fields that a sampler does not report.

    >>> steps = Info(accept=jnp.array([1.0, 0.0, 1.0, 1.0]))  # as draws.info of a chain
    >>> float(steps.accept.mean())
    0.75
    """

    accept: Scalar
    """Fraction of proposals that were accepted; 1 if nothing is ever rejected."""
    chance: Scalar | None = None
    """Acceptance probability of the proposal."""
    flip: Scalar | None = None
    """1 if the momentum was negated, else 0."""
    diverged: Scalar | None = None
    """1 if the energy was not a number or rose by more than `leapfrog.DIVERGENT`, else
    0. Such proposals are never accepted."""
    energy: Scalar | None = None
    """E(x) + v'v / 2 at the end of the step, with the refreshed momentum."""
    evaluations: Scalar | None = None
    """Number of leaps that were evaluated."""
    num_leaps: Scalar | None = None
    """Number of leaps taken; 0 if the state did not move."""
    swap: Float[Array, " pair"] | None = None
    """Swap probability of neighbouring temperatures; 0 if no swap was tried."""
    tried: Float[Array, " pair"] | None = None
    """1 if a swap was tried, else 0. The mean of `swap` divided by the mean of `tried`
    estimates the swap rate."""

    @property
    def acceptance(self) -> Scalar:
        """`chance` if the sampler reports it, else `accept`."""
        return self.accept if self.chance is None else self.chance


def check_info(info: Any) -> Info:
    """Return a sampler's report with floating entries; raise if it is not an `Info`."""
    if not isinstance(info, Info):
        raise ValueError(
            "a step of a sampler must return a probjax.types.Info, "
            f"got {type(info).__name__}"
        )
    return jax.tree.map(floating, info)


class UnitLosses(NamedTuple):
    """Parts of a loss that is a sum over units, each a function of one gap.

    Before its reduction over rows, the loss is the sum over units n of `score` of the
    gap of unit n, or the logarithm of the sum of its exponentials if the loss is one of
    a mean exponential. The gap is linear in the parameters of the unit.
    """

    params: Callable[[Params, Array], Params]
    """Function of all parameters and the number of a unit: the entries on which the gap
    of that unit depends."""
    gap: Callable[[Params, Array, State], Scalar]
    """Function of the parameters of a unit, its number and a state: the gap."""
    score: Callable[[Scalar], Scalar]
    """Score of one gap."""
    num_units: int
    """Number of units."""
