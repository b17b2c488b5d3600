"""Forwarding classes: base classes for wrappers around an objective or a sampler.

A forwarding class delegates every member of its interface to the wrapped object. A
wrapper that inherits from it overrides only the members that it changes, and no member
of the wrapped object is silently replaced by the default of the interface. A test
compares the members of both classes.
"""

import dataclasses
from typing import Any, Literal, Self

from probjax.interfaces import Chart, Objective, Sampler
from probjax.potential import Potential
from probjax.types import (
    Array,
    Context,
    Data,
    Domain,
    Energy,
    Float,
    Info,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
    State,
    UnitLosses,
)


class ForwardingObjective(Objective):
    """Objective that delegates every member to `objective`."""

    objective: Objective

    def prepare(self, params: Params, data: Data) -> Data:
        return self.objective.prepare(params, data)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        return self.objective.init(key, params, data)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        return self.objective.refresh(key, params, data, context)

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        return self.objective.row(params, x, context)

    def rest(self, params: Params, shared: PyTree) -> Scalar:
        return self.objective.rest(params, shared)

    def reduce(self, values: Array, weights: Array) -> Scalar:
        return self.objective.reduce(values, weights)

    @property
    def has_value(self) -> bool:
        return self.objective.has_value

    @property
    def couples_rows(self) -> bool:
        return self.objective.couples_rows

    @property
    def num_groups(self) -> int:
        return self.objective.num_groups

    def groups(self, shared: PyTree) -> tuple[PyTree, PyTree]:
        return self.objective.groups(shared)

    def states(self, shared: PyTree) -> State:
        return self.objective.states(shared)

    def num_letters(self) -> int | None:
        return self.objective.num_letters()

    @property
    def energy(self) -> Energy | None:
        return self.objective.energy

    def unbounded(self, params: Params, data: Data) -> str:
        return self.objective.unbounded(params, data)

    def unbounded_entries(self, params: Params, data: Data) -> Params | None:
        return self.objective.unbounded_entries(params, data)

    def unit_losses(self, params: Params, data: Data) -> UnitLosses | None:
        return self.objective.unit_losses(params, data)

    def chart(self, params: Params, data: Data) -> Chart | None:
        return self.objective.chart(params, data)

    def couplings(self, params: Params) -> Params | None:
        return self.objective.couplings(params)

    def statistic(self, params: Params, x: State) -> Float[Array, " statistic"]:
        return self.objective.statistic(params, x)

    def of_mean(self, mean: Float[Array, " statistic"]) -> Scalar:
        return self.objective.of_mean(mean)


class ForwardingSampler(Sampler):
    """Sampler that delegates every member to `sampler`."""

    sampler: Sampler

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> Any:
        return self.sampler.init(key, potential, x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: Any
    ) -> tuple[Any, Info]:
        return self.sampler.step(key, potential, state)

    def prepare(self, potential: Potential, x: State) -> State:
        return self.sampler.prepare(potential, x)

    @property
    def domain(self) -> Domain:
        return self.sampler.domain

    def num_letters(self) -> int | None:
        return self.sampler.num_letters()

    def mean_gap(self, potential: Potential, x: State) -> Scalar | None:
        return self.sampler.mean_gap(potential, x)

    @property
    def resumable(self) -> bool:
        return self.sampler.resumable

    def cached_terms(self, state: Any) -> Float[Array, " term"] | None:
        return self.sampler.cached_terms(state)

    @property
    def target_acceptance(self) -> float | None:
        return self.sampler.target_acceptance

    @property
    def max_step_size(self) -> float | None:
        return self.sampler.max_step_size

    @property
    def step_size(self) -> Any:
        return self.sampler.step_size

    @property
    def metric(self) -> Array | None:
        return self.sampler.metric

    @property
    def metrics(self) -> tuple[Literal["lengths", "matrix"], ...]:
        return self.sampler.metrics

    def adapted(self, step_size: Scalar, metric: Array | None = None) -> Self:
        sampler = self.sampler.adapted(step_size, metric)
        return dataclasses.replace(self, sampler=sampler)  # pyright: ignore
