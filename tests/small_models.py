"""Models small enough to enumerate, asymmetric so that a wrong sign cannot hide."""

import jax
import jax.numpy as jnp
import numpy as np

from probjax import Data, Objective, ising, recipe
from probjax.fitting import StoppingRule
from probjax.trees import as_array
from probjax.types import Context


@recipe
class AfterSteps(StoppingRule):
    """Stop after a number of steps."""

    most: int

    def is_met(self, progress, data):
        return progress.step >= self.most


def random_ising(seed, size, scale=1.0, edges=None):
    """Parameters in the precision of the test, made by NumPy."""
    generator = np.random.default_rng(seed)
    edges = ising.checked_edges(edges, size)
    count = size * (size - 1) // 2 if edges is None else len(edges)
    bias = as_array(scale * generator.normal(size=size) + 0.3)
    return ising.Params(bias, as_array(scale * generator.normal(size=count)), edges)


def flat_ising(size):
    """Parameters of an Ising model with no bias and no coupling."""
    pairs = size * (size - 1) // 2
    return ising.Params(as_array(np.zeros(size)), as_array(np.zeros(pairs)))


def all_states(size, num_letters=2):
    """All states as rows of a NumPy array, the last site varying fastest."""
    axes = [np.arange(num_letters)] * size
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, size)


def matrix_of(params):
    """J of an Ising model, in float64."""
    size = len(params.bias)
    pairs = (
        np.triu_indices(size, 1) if params.edges is None else np.array(params.edges).T
    )
    matrix = np.diag(np.asarray(params.bias, float))
    matrix[tuple(pairs)] = matrix[tuple(pairs)[::-1]] = params.coupling
    return matrix


def log_probs_of(params):
    """Log-probabilities of `all_states` under an Ising model, in float64."""
    x = all_states(len(params.bias))
    minus_energy = -np.sum(x @ matrix_of(params) * x, axis=1)
    return minus_energy - np.logaddexp.reduce(minus_energy)


def drawn_from(seed, params, num_rows):
    """Independent rows of an Ising model, as floats of NumPy."""
    chances = np.exp(log_probs_of(params))
    generator = np.random.default_rng(seed)
    chosen = generator.choice(len(chances), size=num_rows, p=chances)
    return all_states(len(params.bias))[chosen].astype(np.float32)


def flat_of(tree):
    """All numbers of a tree, in a vector of NumPy."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def plain_energy(params, x):
    """An Ising energy that says nothing of its closed forms."""
    return x @ ising.coupling_matrix(params) @ x


def cubic_energy(params, x):
    """Not quadratic, not linear in its parameters, over a tuple of parameters."""
    weight, bias = params
    return (
        jnp.sum(jnp.log1p((weight @ x) ** 2)) + bias @ x + bias[0] * x[0] * x[1] * x[2]
    )


def cubic_params(seed, size):
    generator = np.random.default_rng(seed)
    weight, bias = generator.normal(size=(size + 1, size)), generator.normal(size=size)
    return as_array(weight), as_array(bias)


def counted_states(size):
    """All states of a random Ising model, with their counts among 500 draws."""
    generator = np.random.default_rng(0)
    x = np.arange(2**size)[:, None] >> np.arange(size) & 1
    matrix = generator.normal(scale=0.3, size=(size, size))
    weights = np.exp(-np.sum(x @ matrix * x, axis=1))
    return Data(x, generator.multinomial(500, weights / weights.sum()).astype(float))


@recipe
class Linear(Objective):
    """The loss is the mean over rows of params . x.

    Rows count how often they were refreshed; shared are the last two random draws.
    """

    def prepare(self, params, data):
        return data

    def init(self, key, params, data):
        return Context(jnp.zeros(len(data.x)), jnp.zeros(2))

    def refresh(self, key, params, data, context):
        draws = jnp.stack([context.shared[1], jax.random.uniform(key)])
        return Context(context.rows + 1, draws)

    def row(self, params, x, context):
        return params @ x


LINEAR = Linear()
