"""Sums of energies, which combine models: E(x) = E_1(x) + E_2(x) + ...

The product of distributions has the sum of their energies. The parameters of a sum are
a tuple with those of each part, and its closed forms are the sums of theirs. For
example, the K-pairwise model of Tkacik et al. (2014) adds a potential of the number of
active units to an Ising model:

    energy = sums.add(ising.energy, population.energy)
    start = ising.init(key, size), population.init(size, first=3)

Parts may share directions, such as biases and a term that is linear in the number of
active units. Then only the sum of the two is determined; leave one of them out, as
`first=3` does, or use a weak penalty.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from probjax.interfaces import Chart
from probjax.potential import SITE_FORMS, Potential, closed_forms
from probjax.recipe import recipe
from probjax.trees import float_dtype
from probjax.types import Conditioned, Data, Energy, Params, Scalar, State


@dataclass(frozen=True)
class _Sum:
    """Sum of energies, an energy whose parameters are a tuple; `add` constructs it.

    Single flips use the closed form of every part that has one, and the generic path
    for the others.
    """

    energies: tuple[Energy, ...]
    """Parts of the sum."""

    def __call__(self, params: tuple[Params, ...], x: State) -> Scalar:
        return _potential(self.energies, params)(x)

    @property
    def closed_forms(self) -> Mapping[str, Callable]:
        """Closed forms of the sum, from those of its parts."""
        forms = [closed_forms(energy) for energy in self.energies]
        names = set().union(*forms)
        # Gaps of letters need the number of letters, which a generic part would not
        # receive. Blocks have no generic path.
        everywhere = set(forms[0]).intersection(*forms)
        names -= {"site_gaps", "site_gap", "bit_block", "letter_block"} - everywhere
        return {n: partial(form, self) for n, form in FORMS.items() if n in names}


def add(*energies: Energy) -> Energy:
    """Return the sum of energies, whose parameters are the tuple of theirs.

    >>> from probjax import ising
    >>> def field(params, x):
    ...     return params * x.sum()
    >>> energy = add(ising.energy, field)
    >>> params = ising.from_matrix([[1.0, 0.0], [0.0, 2.0]]), 3.0
    >>> float(energy(params, np.array([0.0, 1.0])))
    5.0
    """
    if not energies or not all(map(callable, energies)):
        raise ValueError(f"energies must be functions, at least one, got {energies}")
    return _Sum(energies)


@dataclass(frozen=True)
class _OfStates:
    """An energy of plain states, as an energy of states with inputs."""

    energy: Energy

    def __call__(self, params: Params, x: Conditioned) -> Scalar:
        return self.energy(params, x.x)

    @property
    def closed_forms(self) -> Mapping[str, Callable]:
        """Closed forms of the energy, as functions of states with inputs."""
        lifted = {
            **dict.fromkeys(("flip_gaps", "mirror_gap", "site_gaps"), _form_of_state),
            **dict.fromkeys(SITE_FORMS, _form_of_site),
            **dict.fromkeys(("unbounded", "unbounded_entries", "chart"), _form_of_data),
        }
        forms = closed_forms(self.energy)
        same = {n: forms[n] for n in ("couplings", "unnormalisable") if n in forms}
        return same | {
            name: partial(lift, forms[name])
            for name, lift in lifted.items()
            if name in forms
        }


def ignoring_inputs(energy: Energy) -> Energy:
    """Return an energy of plain states as one of states with inputs.

    It can be added to energies that read inputs. For example, a model of pairs with
    fields that depend on a stimulus (Granot-Atedgi et al., 2013) is

        sums.add(sums.ignoring_inputs(ising.energy), stimulus_energy)

    >>> from probjax import ising
    >>> energy, params = ignoring_inputs(ising.energy), ising.from_matrix([[3.0]])
    >>> float(energy(params, Conditioned(np.ones(1), inputs=None)))
    3.0
    """
    return _OfStates(energy)


def _form_of_state(form, params, row):
    return form(params, row.x)


def _form_of_site(form, params):
    gap = form(params)
    return lambda row, *site: gap(row.x, *site)


def _form_of_data(form, params, data):
    return form(params, data._replace(x=data.x.x))


@recipe
class ChartOfParts(Chart):
    """Chart of the parameters of a sum; parts without a chart are not changed.

    >>> from probjax.fitting.charts import Affine
    >>> ChartOfParts((Affine(scale=2.0), None)).inverse((np.ones(1), np.ones(1)))
    (array([2.]), array([1.]))
    """

    charts: tuple[Chart | None, ...]
    """Chart of each part, or None."""

    def forward(self, params: tuple[Params, ...]) -> tuple:
        pairs = zip(self.charts, params, strict=True)
        return tuple(p if chart is None else chart.forward(p) for chart, p in pairs)

    def inverse(self, coordinates: tuple) -> tuple[Params, ...]:
        pairs = zip(self.charts, coordinates, strict=True)
        return tuple(c if chart is None else chart.inverse(c) for chart, c in pairs)

    def scales(self, params: tuple[Params, ...]) -> tuple:
        def of_part(chart, part):
            found = 1.0 if chart is None else chart.scales(part)
            return jax.tree.map(lambda leaf: 0.0, part) if found is None else found

        pairs = zip(self.charts, params, strict=True)
        parts = tuple(of_part(*pair) for pair in pairs)
        return jax.tree.broadcast(parts, params)


def _potential(energies, params):
    if not isinstance(params, tuple) or len(params) != len(energies):
        found = f"{len(params)}" if isinstance(params, tuple) else type(params).__name__
        raise ValueError(
            f"params must be a tuple of the {len(energies)} parts of the sum, got "
            f"{found}"
        )
    return Potential(energies, params, np.ones(len(energies), float_dtype(params)))


def _flip_gaps(total, params, x):
    return _potential(total.energies, params).flip_gaps(x)


def _mirror_gap(total, params, x):
    return _potential(total.energies, params).mirror_gap(x)


def _flip_gap(total, params):
    return _potential(total.energies, params).flip_gap()


def _site_gaps(total, params, x):
    return sum(form(p, x) for form, p in _forms(total, "site_gaps", params) if form)


def _site_gap(total, params):
    gaps = [form(p) for form, p in _forms(total, "site_gap", params) if form]
    return lambda x, site: sum(gap(x, site) for gap in gaps)


def _block(name, total, params):
    return _potential(total.energies, params).block(name)


def _forms(total, name, params):
    """Return the closed form of each part, or None, with its parameters."""
    forms = [closed_forms(energy).get(name) for energy in total.energies]
    return list(zip(forms, params, strict=True))


def _unbounded(total, params, data: Data) -> str:
    parts = _forms(total, "unbounded", params)
    return "; ".join(filter(None, (form(p, data) for form, p in parts if form)))


def _unbounded_entries(total, params, data: Data):
    parts = _forms(total, "unbounded_entries", params)
    return tuple(form(p, data) if form else jax.tree.map(_no, p) for form, p in parts)


def _unnormalisable(total, params) -> str:
    """Why no part confines the states; "" if a part may do so."""
    parts = _forms(total, "unnormalisable", params)
    reasons = [form(p) if form else "" for form, p in parts]
    return "; ".join(reasons) if all(reasons) else ""


def _chart(total, params, data: Data) -> ChartOfParts:
    parts = _forms(total, "chart", params)
    return ChartOfParts(tuple(form(p, data) if form else None for form, p in parts))


def _couplings(total, params):
    parts = _forms(total, "couplings", params)
    return tuple(form(p) if form else jax.tree.map(_one, p) for form, p in parts)


def _one(leaf):
    return 1.0


def _no(leaf):
    return np.zeros(np.shape(leaf), bool)


FORMS = {
    "flip_gaps": _flip_gaps,
    "mirror_gap": _mirror_gap,
    "flip_gap": _flip_gap,
    "site_gaps": _site_gaps,
    "site_gap": _site_gap,
    "bit_block": partial(_block, "bit_block"),
    "letter_block": partial(_block, "letter_block"),
    "unbounded": _unbounded,
    "unbounded_entries": _unbounded_entries,
    "unnormalisable": _unnormalisable,
    "chart": _chart,
    "couplings": _couplings,
}
"""Closed forms of a sum."""
