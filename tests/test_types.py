import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import L1, L2, Gaussian
from probjax.models.ising import SwendsenWang, Wolff
from probjax.potential import closed_form, closed_forms
from probjax.recipe import recipe, static
from probjax.trees import float_dtype


@recipe
class Knobs:
    step: float
    extra: tuple = ()
    count: int = static(default=1)

    def __post_init__(self):
        if self.count < 1:
            raise ValueError("count must be at least 1")


def test_numbers_become_floats_and_tracers_pass():
    assert isinstance(Knobs(1).step, float)
    jax.jit(lambda step: Knobs(step).step + 1)(2.0)


def test_own_checks_still_run():
    with pytest.raises(ValueError, match="at least 1"):
        Knobs(1.0, count=0)


def test_static_fields_are_part_of_the_program_and_others_are_not():
    traced = []

    @jax.jit
    def use(knobs):
        traced.append(knobs.count)
        return knobs.step * knobs.count

    for knobs in (Knobs(1), Knobs(2.0), Knobs(3.5), Knobs(1.0, count=2)):
        use(knobs)
    assert traced == [1, 2]


def test_recipes_compare_by_value_and_are_not_hashed():
    assert Knobs(1.0, (jnp.ones(2),)) == Knobs(1, (jnp.ones(2),))
    assert Knobs(1.0, (jnp.ones(2),)) != Knobs(1, (jnp.zeros(2),))
    assert Knobs(1.0) != 1.0
    with pytest.raises(TypeError):
        hash(Knobs(1.0))


def test_recipes_are_frozen():
    with pytest.raises(AttributeError):
        Knobs(1.0).step = 2.0


def test_unknown_closed_forms_are_refused():
    with pytest.raises(ValueError, match=r"flip_gaps.*got \['gradient'\]"):
        closed_form(gradient=jnp.sin)
    assert closed_forms(jnp.sin) == {}


def test_float_dtype_ignores_integers():
    assert float_dtype((jnp.ones(1, jnp.float16), jnp.ones(1, int))) == jnp.float16
    assert float_dtype(()) == jnp.float32


def test_recipes_of_other_classes_are_other_structures():
    """Or jit might run the program of one for the other."""

    def structure(knobs):
        return jax.tree.structure(knobs)

    @recipe
    class Twin:
        step: float
        extra: tuple = ()
        count: int = static(default=1)

    assert structure(Knobs(1.0)) == structure(Knobs(2.0))
    assert structure(Knobs(1.0)) != structure(Knobs(1.0, count=2))
    assert structure(Knobs(1.0)) != structure(Twin(1.0))
    assert structure(L1(1.0)) != structure(L2(1.0))
    assert structure(SwendsenWang()) != structure(Wolff())


def test_paths_to_the_leaves_of_a_recipe_are_its_fields():
    leaves, _ = jax.tree_util.tree_flatten_with_path(Knobs(1.0, (2.0,)))
    assert [jax.tree_util.keystr(path) for path, _ in leaves] == [".step", ".extra[0]"]


def test_functions_of_recipes_can_be_lowered_and_described():
    """jax rebuilds recipes from objects that are not values, which no check accepts."""
    base = Gaussian(3, mean=np.ones(3), scale=2.0)
    lowered = jax.jit(lambda base: base.log_z).lower(base)
    assert "stablehlo" in lowered.as_text()
    shapes = jax.tree.map(jnp.shape, base)
    assert isinstance(shapes, Gaussian)
    assert shapes.mean == (3,)
