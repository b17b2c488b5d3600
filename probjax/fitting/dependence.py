"""Whether the result of a function depends on its first argument.

The function is traced, and dependence is followed from equation to equation. It is
followed into compiled and checkpointed functions, and into branches whose choice does
not depend on the argument, such as those for platforms. What enters a loop or decides
between branches is assumed to affect all results. So the answer "no" is always right,
for piecewise functions too, whose derivatives would mislead.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from probjax.types import PyTree

_LOOPS = {"scan", "while"}


def depends_on_first(
    function: Callable[..., PyTree], first: PyTree, *others: PyTree
) -> bool:
    """Whether `function(first, *others)` may depend on `first`.

    Arguments may be shapes, see `jax.ShapeDtypeStruct`.

    >>> import jax.numpy as jnp
    >>> def energy(params, x):
    ...     return jnp.sum(params * x**2)
    >>> depends_on_first(energy, 1.0, jnp.ones(2))
    True
    >>> depends_on_first(jax.grad(energy), 1.0, jnp.ones(2))
    False
    """
    jaxpr = jax.make_jaxpr(function)(first, *others).jaxpr
    count = len(jax.tree.leaves(first))
    return any(_dependent(jaxpr, [i < count for i in range(len(jaxpr.invars))]))


def _dependent(jaxpr: Any, flags: list[bool]) -> list[bool]:
    """Return which results depend on the arguments that have a flag."""
    known = {var for var, flag in zip(jaxpr.invars, flags, strict=True) if flag}

    def is_known(var):
        return not isinstance(var, Literal) and var in known

    for equation in jaxpr.eqns:
        entering = [is_known(var) for var in equation.invars]
        if any(entering):
            leaving = _leaving(equation, entering)
            pairs = zip(equation.outvars, leaving, strict=True)
            known |= {var for var, flag in pairs if flag}
    return [is_known(var) for var in jaxpr.outvars]


def _leaving(equation, entering):
    """Return which results of an equation depend on the arguments that have a flag."""
    if equation.primitive.name == "cond" and not entering[0]:
        branches = [branch.jaxpr for branch in equation.params["branches"]]
        found = [_dependent(branch, entering[1:]) for branch in branches]
        return [any(flags) for flags in zip(*found, strict=True)]
    inner = [
        value.jaxpr if isinstance(value, ClosedJaxpr) else value
        for value in equation.params.values()
        if isinstance(value, ClosedJaxpr | Jaxpr)
    ]
    is_call = len(inner) == 1 and equation.primitive.name not in _LOOPS
    if is_call and len(inner[0].invars) == len(entering):
        return _dependent(inner[0], entering)
    return [True] * len(equation.outvars)
