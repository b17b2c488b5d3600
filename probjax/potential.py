"""Potentials: weighted sums of energies, the form in which samplers receive a model.

    U(x) = sum_i weights_i * energy_i(args_i, x)

One energy with weight 1 is a model; two energies with weights 1 - b and b are a
distribution on an annealing path. The terms and their gradients do not depend on the
weights, so a sampler that caches them can move along the path without evaluating an
energy again.
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

from probjax import generic_gaps
from probjax.recipe import recipe, static
from probjax.trees import float_dtype
from probjax.types import (
    Array,
    Conditioned,
    Data,
    Energy,
    Float,
    Params,
    PyTree,
    Scalar,
    SiteBlock,
    State,
)

SITE_FORMS = "flip_gap", "site_gap", "bit_block", "letter_block"
"""Closed forms that return a function of a state and of sites."""


def closed_form(**forms: Callable[..., Any]) -> Callable[[Callable], Callable]:
    """Attach closed forms to an energy, which replace slower generic computations.

    Functions of `(params, x)`, in which x is a state, or a `Conditioned` whose `x` has
    the bits and sites:

    - `flip_gaps`: E(x) - E(x with bit n flipped), for every n;
    - `mirror_gap`: E(x) - E(1 - x);
    - `site_gaps`: E(x) - E(x with site n set to a), for every n and every letter a.

    A function of `(params, x)` that returns E(x) and gaps, which may be approximate:

    - `proposal_gaps`: gaps of all bits, or of all letters of all sites, as cheap as a
      gradient, for samplers that propose by gaps. See `gradient_gaps` and
      `one_hot_gaps` in `probjax.samplers`.

    Functions of `params` that return a function of `(x, n)`. Sweeps over the sites call
    them once, so that what depends on `params` alone is computed once:

    - `flip_gap`: the gap of bit n;
    - `site_gap`: the gaps of site n, for every letter.

    Functions of `params` that return a function of `(x, first, size)`, for energies
    with interactions of pairs: the `SiteBlock` of `size` sites from site `first`. A
    sweep computes one matrix product for each block instead of one for each site:

    - `bit_block`: the log odds of these bits;
    - `letter_block`: the log probabilities of the letters of these sites.

    A pair of forms for fits of single units, see `fit_nodes`:

    - `unit_params(params, n)`: the parameters on which the gap of bit n depends;
    - `unit_energy`: an energy that is linear in these parameters, whose closed form
      `flip_gap` is the gap of that bit.

    Functions that return a description, or "" if there is nothing to report:

    - `unbounded(params, data)`: which parameters have no finite estimate, and why;
    - `unnormalisable(params)`: why exp(-E) has no finite integral.

    Properties that `uncertainty` uses:

    - `unbounded_entries(params, data)`: a tree like `params`, True for entries without
      a finite estimate.

    Properties that `fit` uses by default:

    - `chart(params, data)`: a `Chart`, well-conditioned coordinates for these data;
    - `couplings(params)`: a tree like `params` with one number for each leaf or entry,
      1 for couplings and 0 for biases and fields, which penalties spare.

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
    known = {"flip_gaps", "mirror_gap", "site_gaps", "proposal_gaps", *SITE_FORMS}
    known |= {"unbounded", "unnormalisable", "chart", "couplings"}
    known |= {"unit_params", "unit_energy", "unbounded_entries"}
    if unknown := set(forms) - known:
        raise ValueError(
            f"closed forms must be among {sorted(known)}, got {sorted(unknown)}"
        )

    def attach(energy):
        energy.closed_forms = types.MappingProxyType(forms)
        return energy

    return attach


def closed_forms(energy: Callable) -> Mapping[str, Callable]:
    """Return the closed forms attached to `energy`; empty for a plain function.

    >>> @closed_form(flip_gaps=lambda bias, x: bias * (2 * x - 1))
    ... def energy(bias, x):
    ...     return bias @ x
    >>> list(closed_forms(energy))
    ['flip_gaps']
    """
    return getattr(energy, "closed_forms", types.MappingProxyType({}))


@recipe
class Potential:
    """A weighted sum of energies of one state; `potential` builds that of one model.

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

    def scaled(self, beta: Scalar | float) -> "Potential":
        """Return this potential times `beta`, an inverse temperature."""
        return Potential(self.energies, self.args, beta * self.weights)

    def terms(self, x: State) -> Float[Array, " term"]:
        """Compute each energy at `x`, unweighted."""
        return jnp.stack([energy(args, x) for energy, args in self._pairs()])

    def terms_and_gradients(self, x: State) -> tuple[Float[Array, " term"], PyTree]:
        """Compute each energy and its gradient in `x`, unweighted.

        Leaves have shape `(term, ...)`; `combine` applies the weights. The cost is one
        value-and-gradient of each energy.
        """
        pairs = [jax.value_and_grad(e, argnums=1)(a, x) for e, a in self._pairs()]
        values, gradients = zip(*pairs, strict=True)
        return jnp.stack(values), jax.tree.map(lambda *g: jnp.stack(g), *gradients)

    def terms_and_gaps(
        self, x: State, num_states: int
    ) -> tuple[Float[Array, " term"], Float[Array, "term ..."]]:
        """Compute each energy and its gaps, unweighted, as cheaply as possible.

        The gaps serve proposals, which need not be exact. Those of bits, `(term, bit)`,
        come from a closed form, or else from the gradient. Those of letters, `(term,
        site, letter)`, come from a closed form, or else from all changed energies.
        `combine` applies the weights.
        """
        pairs = [_proposal_gaps(e, a, x, num_states) for e, a in self._pairs()]
        values, gaps = zip(*pairs, strict=True)
        return jnp.stack(values), jnp.stack(gaps)

    def combine(self, terms: PyTree) -> PyTree:
        """Compute the weighted sum over the leading axis of every leaf of `terms`."""
        return jax.tree.map(lambda leaf: _combine(self.weights, list(leaf)), terms)

    def flip_gaps(self, x: State) -> Float[Array, " bit"]:
        """Compute U(x) - U(x with bit n flipped) for every bit n of `ravel(x)`."""
        return self._sum_of_forms("flip_gaps", generic_gaps.flip_gaps, x)

    def mirror_gap(self, x: State) -> Scalar:
        """Compute U(x) - U(1 - x), the gap to the state with every bit flipped."""
        return self._sum_of_forms("mirror_gap", generic_gaps.mirror_gap, x)

    def site_gaps(self, x: State, num_states: int) -> Float[Array, "site letter"]:
        """Compute U(x) - U(x with site n set to a) for every site n and letter a.

        Sites are in the order of `ravel(x)`. The gap of a site's own letter is 0.
        """
        generic = partial(generic_gaps.site_gaps, num_states=num_states)
        gaps = self._sum_of_forms("site_gaps", generic, x)
        sites = ravel_pytree(x)[0].size
        if gaps.shape != (sites, num_states):
            raise ValueError(
                f"site_gaps of the energy must have shape ({sites}, {num_states}) for "
                f"{sites} sites with {num_states} letters, got {gaps.shape}"
            )
        return gaps

    def flip_gap(self) -> Callable[[State, Array], Scalar]:
        """Return a function of `(x, n)`: U(x) - U(x with bit n flipped)."""
        return self._sum_of_functions("flip_gap", generic_gaps.flip_gap)

    def site_gap(self, num_states: int) -> Callable[[State, Array], Array]:
        """Return a function of `(x, n)`: U(x) - U(x with site n set to a), every a."""
        return self._sum_of_functions(
            "site_gap", partial(generic_gaps.site_gap, num_states=num_states)
        )

    def block(self, name: str) -> Callable[[State, Array, int], SiteBlock]:
        """Return a function of `(x, first, size)` from a form of every energy."""
        forms = [closed_forms(energy)[name](args) for energy, args in self._pairs()]

        def of_sites(x, *sites):
            blocks = [form(x, *sites) for form in forms]
            return jax.tree.map(lambda *b: _combine(self.weights, b), *blocks)

        return of_sites

    def has_closed_form(self, name: str) -> bool:
        """Whether every energy has the closed form `name`."""
        return all(name in closed_forms(energy) for energy in self.energies)

    def _sum_of_forms(self, name, generic, x):
        gaps = [form(args, x) for form, args in self._forms(name, generic)]
        return _combine(self.weights, gaps)

    def _sum_of_functions(self, name, generic):
        gaps = [form(args) for form, args in self._forms(name, generic)]
        return lambda x, n: _combine(self.weights, [gap(x, n) for gap in gaps])

    def _forms(self, name, generic):
        """Yield the closed form of each energy, or the generic path, with its args."""
        for energy, args in self._pairs():
            yield closed_forms(energy).get(name, partial(generic, energy)), args

    def _pairs(self):
        return zip(self.energies, self.args, strict=True)


def potential(energy: Energy, params: Params, inputs: PyTree = None) -> Potential:
    """Return the potential of one model: its energy with weight 1.

    Args:
        inputs: inputs of the state; None if the states of the model have none. The
            potential is then a function of `Conditioned.x` alone.

    >>> def energy(bias, x):
    ...     return bias @ x
    >>> model = potential(energy, jnp.array([1.0, 3.0]))
    >>> model.flip_gaps(jnp.array([0.0, 1.0])).tolist()
    [-1.0, 3.0]
    """
    weights = np.ones(1, float_dtype(params))
    if inputs is None:
        return Potential((energy,), (params,), weights)
    return Potential((Conditional(energy),), ((params, inputs),), weights)


def in_one_precision(potential: Potential, x: State) -> State:
    """Return `x` in the wider of its own dtype and the energy's.

    >>> model = potential(lambda scale, x: jnp.sum(x) * scale, jnp.float32(1))
    >>> in_one_precision(model, jnp.zeros(2, jnp.float16)).dtype
    dtype('float32')
    """
    dtype = jnp.result_type(potential.weights, *jax.tree.leaves(x))
    return jax.tree.map(lambda leaf: leaf.astype(dtype), x)


@dataclass(frozen=True)
class Conditional:
    """Energy of a state given its inputs, which become part of the parameters.

        E((params, inputs), x) = energy(params, Conditioned(x, inputs))

    It is an energy of plain states, with the closed forms of `energy`. Pass it to
    drivers that take a single distribution, such as `ais` or `exact.log_z`, together
    with the inputs of one row.

    >>> from probjax import exact
    >>> def energy(weights, row):
    ...     return -(row.inputs @ weights) * row.x.sum()
    >>> weights, inputs = jnp.zeros(2), jnp.array([1.0, 2.0])
    >>> log_z = exact.log_z(Conditional(energy), (weights, inputs), 1)
    >>> round(float(log_z), 4)  # log 2
    0.6931
    """

    energy: Energy

    def __call__(self, args: tuple[Params, PyTree], x: State) -> Scalar:
        params, inputs = args
        return self.energy(params, Conditioned(x, inputs))

    @property
    def closed_forms(self) -> Mapping[str, Callable]:
        """Closed forms of gaps of the energy, as functions of plain states."""
        forms = closed_forms(self.energy)
        of_state = {"flip_gaps", "mirror_gap", "site_gaps", "proposal_gaps"}
        of_state &= set(forms)
        of_site = set(SITE_FORMS) & set(forms)
        return {name: partial(_form_of_state, forms[name]) for name in of_state} | {
            name: partial(_form_of_site, forms[name]) for name in of_site
        }


def _form_of_state(form, args, x):
    params, inputs = args
    return form(params, Conditioned(x, inputs))


def _form_of_site(form, args):
    params, inputs = args
    gap = form(params)
    return lambda x, *site: gap(Conditioned(x, inputs), *site)


@dataclass(frozen=True)
class Posterior:
    """Energy of the latents of a generative model, given a row: the joint energy."""

    joint: Callable[..., Scalar]

    def __call__(self, args: tuple[Params, State], a: State) -> Scalar:
        params, x = args
        return self.joint(params, x, a)


def unbounded(energy: Energy, params: Params, data: Data) -> str:
    """Describe which parameters have no finite estimate; "" if none are known."""
    form = closed_forms(energy).get("unbounded")
    return "" if form is None else form(params, data)


def unbounded_entries(energy: Energy, params: Params, data: Data) -> Params | None:
    """Return True for entries without a finite estimate; None if they are not known."""
    form = closed_forms(energy).get("unbounded_entries")
    return None if form is None else form(params, data)


def default_chart(energy: Energy, params: Params, data: Data) -> Any:
    """Return the `Chart` that the energy provides; None if it provides none."""
    form = closed_forms(energy).get("chart")
    return None if form is None else form(params, data)


def couplings(energy: Energy, params: Params) -> Params | None:
    """Return 1 for couplings and 0 for biases; None if the energy declares nothing."""
    form = closed_forms(energy).get("couplings")
    return None if form is None else form(params)


def _proposal_gaps(energy, params, x, num_states):
    forms = closed_forms(energy)
    if "proposal_gaps" in forms:
        return forms["proposal_gaps"](params, x)
    name = "flip_gaps" if num_states == 2 else "site_gaps"
    if name in forms:
        return energy(params, x), forms[name](params, x)
    if num_states == 2:
        return generic_gaps.gradient_gaps(energy, params, x)
    gaps = generic_gaps.site_gaps(energy, params, x, num_states=num_states)
    return energy(params, x), gaps


def _combine(weights, terms):
    # A sum instead of a dot product, so that XLA removes a constant weight of 1.
    weighted = [weights[i] * term for i, term in enumerate(terms)]
    return reduce(jnp.add, weighted)
