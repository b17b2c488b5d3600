"""Weighted energies with their arguments: what samplers and connectivities see.

    U(x) = sum_i weights_i * energy_i(args_i, x)

One energy of weight 1 is a model; two, of weights 1 - b and b, are a state of an
annealing path. The terms and their gradients do not depend on the weights, so a sampler
that keeps them may move along the path without evaluating anything again.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax.checks import is_concrete
from probjax.recipe import recipe, static
from probjax.trees import float_dtype
from probjax.types import Array, Data, Energy, Float, Params, PyTree, Scalar, State

AT_ONCE = 64


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

    >>> from probjax.potential import potential
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


@recipe
class Potential:
    """A weighted sum of energies of one state; build one with `potential`.

    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> half_way = Potential((energy, energy), (1.0, 3.0), jnp.array([0.5, 0.5]))
    >>> x = jnp.array([2.0])
    >>> half_way.terms(x).tolist(), float(half_way(x))
    ([2.0, 6.0], 4.0)
    """

    energies: tuple[Energy, ...] = static()
    args: tuple[Params, ...]
    weights: Any

    def __call__(self, x: State) -> Scalar:
        return _combine(self.weights, list(self.terms(x)))

    def terms(self, x: State) -> Float[Array, " term"]:
        """Each energy at `x`, unweighted."""
        return jnp.stack([energy(args, x) for energy, args in self._pairs()])

    def terms_and_gradients(self, x: State) -> tuple[Float[Array, " term"], PyTree]:
        """Each energy and its gradient in `x`, unweighted, leaves `(term, ...)`.

        Costs one value-and-gradient of each energy. `combine` weighs the result.
        """
        pairs = [jax.value_and_grad(e, argnums=1)(a, x) for e, a in self._pairs()]
        values, gradients = zip(*pairs, strict=True)
        return jnp.stack(values), jax.tree.map(lambda *g: jnp.stack(g), *gradients)

    def combine(self, terms: PyTree) -> PyTree:
        """The weighted sum over the leading axis of every leaf of `terms`."""
        return jax.tree.map(lambda leaf: _combine(self.weights, list(leaf)), terms)

    def flip_gaps(self, x: State) -> Float[Array, " bit"]:
        """U(x) - U(x with bit n flipped) for every n, in the order of `ravel(x)`."""
        return self._sum_of_forms("flip_gaps", _flip_gaps, x)

    def mirror_gap(self, x: State) -> Scalar:
        """U(x) - U(1 - x): the gap to the state with every bit flipped."""
        return self._sum_of_forms("mirror_gap", _mirror_gap, x)

    def site_gaps(self, x: State, num_states: int) -> Float[Array, "site letter"]:
        """U(x) - U(x with site n set to a) for every n, in order, and every letter a.

        It is 0 at the letter that the site has.
        """
        generic = partial(_site_gaps, num_states=num_states)
        gaps = self._sum_of_forms("site_gaps", generic, x)
        sites = ravel_pytree(x)[0].size
        if gaps.shape != (sites, num_states):
            raise ValueError(
                f"x of {sites} sites with {num_states} letters does not suit the "
                f"energy, whose gaps have shape {gaps.shape}"
            )
        return gaps

    def flip_gap(self) -> Callable[[State, Array], Scalar]:
        """A function of `(x, n)`: U(x) - U(x with bit n flipped)."""
        return self._sum_of_functions("flip_gap", _flip_gap)

    def site_gap(self, num_states: int) -> Callable[[State, Array], Array]:
        """A function of `(x, n)`: U(x) - U(x with site n set to a) for every a."""
        return self._sum_of_functions(
            "site_gap", partial(_site_gap, num_states=num_states)
        )

    def knows(self, name: str) -> bool:
        """Whether every energy has the closed form `name`."""
        return all(name in closed_forms(energy) for energy in self.energies)

    def _sum_of_forms(self, name, generic, x):
        forms = [closed_forms(e).get(name, partial(generic, e)) for e in self.energies]
        gaps = [form(args, x) for form, args in zip(forms, self.args, strict=True)]
        return _combine(self.weights, gaps)

    def _sum_of_functions(self, name, generic):
        forms = [closed_forms(e).get(name, partial(generic, e)) for e in self.energies]
        gaps = [form(args) for form, args in zip(forms, self.args, strict=True)]
        return lambda x, n: _combine(self.weights, [gap(x, n) for gap in gaps])

    def _pairs(self):
        return zip(self.energies, self.args, strict=True)


def potential(energy: Energy, params: Params) -> Potential:
    """The potential of one model: its energy with weight 1.

    >>> def energy(bias, x):
    ...     return bias @ x
    >>> model = potential(energy, jnp.array([1.0, 3.0]))
    >>> model.flip_gaps(jnp.array([0.0, 1.0])).tolist()
    [-1.0, 3.0]
    """
    return Potential((energy,), (params,), np.ones(1, float_dtype(params)))


@dataclass(frozen=True)
class Conditioned:
    """The joint energy of a generative model as that of its latents, given a row."""

    joint: Callable[..., Scalar]

    def __call__(self, args: tuple[Params, State], a: State) -> Scalar:
        params, x = args
        return self.joint(params, x, a)


def check_energy(energy: Energy, params: Params, rows: State) -> None:
    """Refuse an energy that does not give one number for one of `rows`."""

    def one(leaf):
        floats = jnp.issubdtype(leaf.dtype, jnp.floating)
        kind = leaf.dtype if floats else jnp.result_type(float)
        return jax.ShapeDtypeStruct(leaf.shape[1:], kind)

    x = jax.tree.map(one, rows)
    try:
        shape = jnp.shape(jax.eval_shape(energy, params, x))
    except (TypeError, ValueError, IndexError) as error:
        shapes = jax.tree.map(lambda leaf: leaf.shape, x)
        raise ValueError(
            f"energy fails on one state, which has shape {shapes} here ({error}); the "
            "leading axis is of rows or chains"
        ) from error
    if shape != ():
        raise ValueError(f"energy must return a scalar, got shape {shape}")


def check_normalisable(energy: Energy, params: Params) -> None:
    """Refuse parameters of a known model at which it has no partition function."""
    told = closed_forms(energy).get("unnormalisable")
    if told is not None and is_concrete(params) and (why := told(params)):
        raise ValueError(f"the model has no partition function: {why}")


def unbounded(energy: Energy, params: Params, data: Data) -> str:
    """What in the data leaves parameters without a finite estimate; "" if not known."""
    form = closed_forms(energy).get("unbounded")
    return "" if form is None else form(params, data)


def _combine(weights, terms):
    # A plain sum and not a dot product: a constant weight of 1 then costs nothing.
    weighted = [weights[i] * term for i, term in enumerate(terms)]
    return reduce(jnp.add, weighted)


def _flip_gap(energy, params):
    def gap(x, bit):
        flat, unravel = ravel_pytree(x)
        flipped = unravel(flat.at[bit].set(1 - flat[bit]))
        return energy(params, x) - energy(params, flipped)

    return gap


def _flip_gaps(energy, params, x):
    flat, unravel = ravel_pytree(x)

    def flipped(bit):
        return energy(params, unravel(flat.at[bit].set(1 - flat[bit])))

    return energy(params, x) - for_each(flipped, flat.size)


def _mirror_gap(energy, params, x):
    return energy(params, x) - energy(params, jax.tree.map(lambda bits: 1 - bits, x))


def _site_gap(energy, params, *, num_states):
    def gap(x, site):
        flat, unravel = ravel_pytree(x)

        def changed(letter):
            return energy(params, unravel(flat.at[site].set(letter)))

        letters = jnp.arange(num_states, dtype=flat.dtype)
        return energy(params, x) - jax.vmap(changed)(letters)

    return gap


def _site_gaps(energy, params, x, *, num_states):
    flat, unravel = ravel_pytree(x)

    def changed(number):
        site, letter = number // num_states, number % num_states
        return energy(params, unravel(flat.at[site].set(letter.astype(flat.dtype))))

    others = for_each(changed, flat.size * num_states)
    return energy(params, x) - others.reshape(flat.size, num_states)


def for_each(function: Callable[[Array], Array], count: int) -> Array:
    """`function` of 0 to `count` - 1.

    All at once if they are few; else a few at a time, with nothing kept for the
    gradient, as memory would grow with the square of the size of a state.
    """
    if count <= AT_ONCE:
        return jax.vmap(function)(jnp.arange(count))
    return jax.lax.map(jax.checkpoint(function), jnp.arange(count), batch_size=8)
