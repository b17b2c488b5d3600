"""Hashes of content, and one object for all functions that are equal."""

import dataclasses
import functools
import gc
import os
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import probjax
from probjax import HMC, MPF, ising
from probjax.potential import closed_form
from probjax.recipe import recipe, static
from probjax.runs import contents
from probjax.runs.digest import canonical, digest, strict_digest

ROOT = Path(probjax.__file__).parents[1]


def made(code, name="f", **values):
    """Function `name` of a module of its own, with the code and globals given."""
    module = types.ModuleType("users_module")
    vars(module).update(values)
    exec(code, vars(module))
    return getattr(module, name)


def digests(value):
    return digest(value), strict_digest(value)


def differ(first, second):
    return all(a != b for a, b in zip(digests(first), digests(second), strict=True))


def test_globals_of_a_users_function_count():
    code = "def f(x):\n    return scale * g(x)"
    plain = "def g(x):\n    return x + 1"
    other = "def g(x):\n    return x + 2"
    first = made(f"{code}\n{plain}", scale=np.ones(2))
    assert digests(first) == digests(made(f"{plain}\n{code}", scale=np.ones(2)))
    assert differ(first, made(f"{code}\n{plain}", scale=np.zeros(2)))
    assert differ(first, made(f"{code}\n{other}", scale=np.ones(2)))
    before = digests(first)
    first.__globals__["scale"] = np.full(2, 3.0)
    assert digests(first)[0] != before[0]
    assert digests(first)[1] != before[1]


def test_globals_that_a_function_does_not_read_do_not_count():
    code = "def f(x):\n    return x.scale"
    assert digests(made(code, scale=1.0)) == digests(made(code, scale=2.0))


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    return [scale * y for y in x]",
        "def f(x):\n    return (lambda y: y * scale)(x)",
        "def f(x):\n    class A:\n        b = scale\n    return A.b",
        "class A:\n    def g(self, x):\n        return scale\n"
        "def f(x):\n    return A().g(x)",
        "class A:\n    b = scale\ndef f(x):\n    return A.b",
        "class A:\n    @property\n    def b(self):\n        return scale\n"
        "def f(x):\n    return A().b",
        "class B:\n    def g(self, x):\n        return scale\nclass A(B):\n    pass\n"
        "a = A()\ndef f(x):\n    return a.g(x)",
        "import jax\n@jax.jit\ndef g(x):\n    return scale\ndef f(x):\n    return g(x)",
        "import functools\n@functools.lru_cache\ndef g(x):\n    return scale\n"
        "def f(x):\n    return g(x)",
        "from functools import partial\nt = {1: [partial(lambda a, b: a * scale, 2)]}\n"
        "def f(x):\n    return t[1][0](x)",
    ],
)
def test_globals_are_followed_through_all_kinds_of_objects(code):
    assert digests(made(code, scale=1.0)) == digests(made(code, scale=1.0))
    assert None not in digests(made(code, scale=1.0))
    assert differ(made(code, scale=1.0), made(code, scale=2.0))


def test_members_of_a_users_modules_count_where_they_are_read():
    code = "def f(x):\n    return outer.inner.g(g)"

    def nested(**values):
        inner, outer = types.ModuleType("outer.inner"), types.ModuleType("outer")
        inner.g = made("def g(x):\n    return x * scale", "g", scale=1.0)
        inner.outer, outer.inner = outer, inner
        vars(inner).update(values)
        return made(code, outer=outer, g=1.0)

    assert digests(nested()) == digests(nested())
    assert digests(nested()) == digests(nested(unread=1))
    assert differ(nested(), nested(g=made("def g(x):\n    return x", "g")))


def test_globals_of_installed_packages_are_not_followed(monkeypatch):
    before = digest(optax.adam(0.1)), digest(MPF(ising.energy))
    monkeypatch.setitem(ising.energy.__globals__, "jnp", None)
    update = optax.adam(0.1).update
    monkeypatch.setitem(update.__globals__, "jnp", None)
    assert before == (digest(optax.adam(0.1)), digest(MPF(ising.energy)))
    assert not contents.is_installed("test_digest")
    assert not contents.is_installed("no_such_module")


RECURSIVE = "def f(x):\n    return f(x - 1) + scale if x else 0"
MUTUAL = """
def f(x):
    return g(x - 1) if x else 0
def g(x):
    return h(x) + 1
def h(x):
    return f(x) * scale
"""


@pytest.mark.parametrize("code", [RECURSIVE, MUTUAL])
def test_functions_that_call_themselves_have_a_digest(code):
    assert digests(made(code, scale=1.0)) == digests(made(code, scale=1.0))
    assert differ(made(code, scale=1.0), made(code, scale=2.0))


def test_parts_far_from_the_root_of_a_cycle_count():
    """All labels differ at once, so that the first hashes separate all objects."""
    first, second = [["a", ["b", ["c"]]] for _ in range(2)]
    for each, label in ((first, "c"), (second, "d")):
        each[1][1][0] = label
        each[1][1].append(each)
    assert differ(first, second)


def test_equal_cycles_of_other_lengths_have_equal_digests():
    first, second, third = [], [], []
    first.append(first)
    second.append(third)
    third.append(second)
    assert digests(first) == digests(second) == digests([first])
    assert differ(first, [[]])


def test_many_functions_that_refer_to_each_other_take_no_time():
    calls = " + ".join(f"g{i}(x)" for i in range(40))
    code = "\n".join(f"def g{i}(x):\n    return {i} + {calls}" for i in range(40))
    code += "\ndef f(x):\n    return g0(x)"
    assert digests(made(code)) == digests(made(code))
    nested = ()
    for _ in range(5000):
        nested = (nested, nested)
    assert digest(nested) != digest((nested, nested))


def test_equal_and_distinct_objects_have_equal_digests():
    def array():
        return np.arange(3.0)

    shared = array()
    assert digests((shared, shared)) == digests((array(), array()))
    one = [shared]
    assert digests({"a": one, "b": one}) == digests({"a": [array()], "b": [array()]})


def test_dictionaries_and_sets_have_no_order():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1, "b": 2}) != digest({"a": 2, "b": 1})
    # A traced function can depend on the order of a dictionary.
    assert strict_digest({"a": 1, "b": 2}) != strict_digest({"b": 2, "a": 1})
    assert digests({3, 1, 2}) == digests({2, 3, 1})
    assert differ({1, 2}, {1, 3})


def test_arrays_of_another_kind_are_told_apart_in_strict_digests():
    host, device = np.float32(1.0), jnp.float32(1.0)
    assert digest(host) == digest(device)
    weak = jnp.asarray(1.0)
    assert len({strict_digest(x) for x in (host, device, weak)}) == 3


def generator():
    yield 1


class Slots:
    __slots__ = ("a", "lock")

    def __init__(self, a, lock=None):
        self.a, self.lock = a, lock


@pytest.mark.parametrize(
    "make",
    [
        generator,
        threading.Lock,
        lambda: np.zeros(2**20 + 1),
        lambda: weakref.ref(generator),
        lambda: Slots(1, threading.Lock()),
        lambda: np.frompyfunc(len, 1, 1),
        lambda: list(range(2**15)),
    ],
    ids=[
        "generator",
        "lock",
        "large array",
        "reference",
        "slots",
        "ufunc",
        "long list",
    ],
)
def test_values_without_comparable_content_have_no_strict_digest(make):
    value = make()
    assert strict_digest(value) is None
    assert strict_digest({"a": [value]}) is None
    assert strict_digest(lambda: value) is None
    assert digest({"a": [value]}) == digest({"a": [make()]})
    closed = canonical(lambda: value)
    assert closed() is value


def test_objects_are_compared_by_what_pickle_stores():
    assert digests(Slots(1)) == digests(Slots(1))
    assert differ(Slots(1), Slots(2))
    generators = [np.random.default_rng(seed) for seed in (0, 0, 1)]
    first, second, other = map(digests, generators)
    assert first == second
    assert other[0] != first[0]
    assert None not in first
    masked = [np.ma.array([1, 2], mask=mask) for mask in ([0, 1], [1, 0])]
    assert differ(*masked)


def test_methods_of_builtin_objects_count_by_their_object():
    assert differ([1].append, [2].append)
    assert differ("a".join, "b".join)


PROGRAM = """
import sys
import jax.numpy as jnp
import numpy as np
import optax
from probjax.runs.digest import digest, strict_digest

class Odd:
    def __init__(self, a):
        self.a = a
    def __call__(self, x):
        return self.a * g(x)

def g(x):
    return f(x - 1) if x in {"a", "b", "c", "d"} else table[x]

table = {name: Odd(i) for i, name in enumerate(["p", "q", Odd, g])}
names = {"a", "b", "c", "d", 1, 2.5, Odd}
odd = Odd(object())

def f(x):
    return g(x), names, odd, jnp.sin(x), np.add(x, 1), optax.adam(0.1), sys

print(digest(f), strict_digest(f), digest(optax.adam(0.1)), digest(optax.lbfgs()))
"""


@pytest.mark.platforms
def test_digests_are_the_same_in_other_processes():
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        program = [sys.executable, "-c", PROGRAM]
        found.add(subprocess.check_output(program, env=environment, text=True))
    assert len(found) == 1
    *_, adam, lbfgs = found.pop().split()
    assert (adam, lbfgs) == (digest(optax.adam(0.1)), digest(optax.lbfgs()))


def schedule(rate):
    return optax.cosine_decay_schedule(rate, 100)


OPTIMIZERS = {
    "adam": optax.adam,
    "chain": lambda rate: optax.chain(optax.clip(1.0), optax.sgd(rate, momentum=0.9)),
    "schedule": lambda rate: optax.adam(schedule(rate)),
    "lbfgs": optax.lbfgs,
    "injected": lambda rate: optax.inject_hyperparams(optax.adam)(rate),
    "masked": lambda rate: optax.masked(optax.sgd(rate), {"a": True, "b": False}),
    "traced rate": lambda rate: optax.adam(jnp.float32(rate)),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_equal_optimizers_are_one_object(make):
    assert make(1e-3) != make(1e-3)
    first, second, other = (canonical(make(rate)) for rate in (1e-3, 1e-3, 2e-3))
    assert first == second
    assert hash(first) == hash(second)
    assert type(first) is type(make(1e-3))
    assert first != other


def test_an_equal_optimizer_compiles_nothing():
    traces = []

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def init(energy, optimizer, x):
        traces.append(energy)
        return optimizer.init(x)

    for _ in range(3):
        objective = MPF(lambda params, x: params * x.sum())
        init(canonical(objective).energy, canonical(optax.adam(0.1)), jnp.ones(3))
    assert len(traces) == 1


def scaled_by(factor):
    def energy(params, x):
        return factor * jnp.sum(params * x)

    return energy


def test_lambdas_with_other_values_stay_different():
    made = [canonical(lambda x, i=i: x * i) for i in (1, 2, 1)]
    assert made[0] is made[2]
    assert made[0] is not made[1]
    closures = [canonical(scaled_by(factor)) for factor in (1.0, 2.0, 1.0)]
    assert closures[0] is closures[2]
    assert [each(1.0, jnp.ones(2)) for each in closures] == [2.0, 4.0, 2.0]


def test_functions_with_other_attributes_stay_different():
    first, second, third = (scaled_by(1.0) for _ in range(3))
    first.closed_forms = {"flip_gaps": scaled_by}
    assert canonical(first) is first
    assert canonical(second) is second
    assert canonical(third) is second


def test_module_level_functions_are_returned_as_they_are():
    twin = types.FunctionType(scaled_by.__code__, globals(), "scaled_by")
    assert canonical(scaled_by) is scaled_by
    assert canonical(twin) is twin


@recipe
class Mine:
    scale: float
    rule: object = static()
    more: object = static(default=())


class Pair(NamedTuple):
    first: object
    second: object


def test_functions_inside_of_recipes_and_containers_are_found():
    def tree():
        function, part = scaled_by(5.0), functools.partial(scaled_by(6.0), 1)
        inner = Mine(2.0, rule=function, more=(part, [scaled_by(7.0)]))
        return {"a": Pair(inner, {"b": part}), "c": jnp.ones(2)}

    first, second = canonical(tree()), canonical(tree())
    assert type(second["a"]) is Pair
    assert second["a"].first.rule is first["a"].first.rule
    assert second["a"].first.more[0] is first["a"].first.more[0]
    assert second["a"].first.more[1][0] is first["a"].first.more[1][0]
    assert second["a"].second["b"] is first["a"].second["b"]
    assert list(second) == ["a", "c"]
    assert first["a"].first == second["a"].first


def test_nothing_is_rebuilt_if_nothing_changes():
    for value in (HMC(0.1), MPF(ising.energy), {"a": [jnp.ones(2), (1, None)]}):
        assert canonical(value) is value
    first = MPF(scaled_by(8.0))
    assert canonical(first) is first
    assert canonical(first) is first


def test_closures_over_tracers_are_left_alone():
    def inside(x):
        first, second = (canonical(lambda y: x * y) for _ in range(2))
        assert strict_digest(first) is None
        assert first is not second
        return first(2.0) + second(3.0)

    assert jax.jit(inside)(2.0) == 10.0
    assert jax.grad(inside)(2.0) == 5.0


def closing_over(values):
    return lambda x: x * sum(values)


def test_a_closure_that_has_changed_represents_no_other():
    values = [1.0]
    first = closing_over(values)
    assert canonical(first) is first
    assert canonical(closing_over([1.0])) is first
    values[0] = 2.0
    second = closing_over([1.0])
    assert canonical(second) is second
    assert canonical(closing_over([1.0])) is second


def test_a_traced_closure_that_has_changed_gives_no_stale_program():
    call = jax.jit(lambda f, x: f(x), static_argnums=0)
    values = [1.0]
    first = closing_over(values)
    assert call(canonical(first), 1.0) == 1.0
    values[0] = 2.0
    # It was traced with another content, so an equal function must not become it.
    changed = canonical(first)
    fresh = canonical(closing_over([2.0]))
    assert changed is first
    assert fresh is not first
    assert call(fresh, 1.0) == 2.0
    assert canonical(first) is fresh


def test_the_table_keeps_nothing_alive():
    first = scaled_by(np.full(3, 9.0))
    alive = weakref.ref(first)
    assert canonical(first) is first
    del first
    gc.collect()
    assert alive() is None
    again = scaled_by(np.full(3, 9.0))
    assert canonical(again) is again


class Handle:
    """An object that cannot be pickled, and has attributes."""

    def __init__(self, scale):
        self.scale = scale

    def __reduce_ex__(self, protocol):
        raise TypeError("holds a handle")


def test_what_cannot_be_pickled_counts_by_its_attributes():
    assert digest(Handle(1.0)) == digest(Handle(1.0))
    assert digest(Handle(1.0)) != digest(Handle(2.0))


def test_closed_forms_count():
    def make():
        def energy(params, x):
            return params @ x

        return energy

    def gaps(params, x):
        return params * x

    formed = closed_form(flip_gaps=gaps)(make())
    assert canonical(make()) is not canonical(formed)
    # As of functions that an installed package makes.
    formed = optax.adam(0.1).update
    plain = canonical(optax.adam(0.1).update)
    formed.closed_forms = {"flip_gaps": gaps}
    assert canonical(formed) is not plain


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, init=False)
class Net:
    """Parameters of another library, with an `__init__` of their own."""

    weight: float
    activation: object

    def __init__(self, size):
        object.__setattr__(self, "weight", float(size))
        object.__setattr__(self, "activation", lambda x: x**2)

    def tree_flatten(self):
        return (self.weight,), self.activation

    @classmethod
    def tree_unflatten(cls, activation, leaves):
        net = object.__new__(cls)
        object.__setattr__(net, "weight", leaves[0])
        object.__setattr__(net, "activation", activation)
        return net


def test_dataclasses_of_others_are_left_alone():
    for size in (1, 1):
        net = Net(size)
        assert canonical(net) is net
