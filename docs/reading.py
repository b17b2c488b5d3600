"""How the reference reads the source: recipes are dataclasses, doctests are code."""

import re

import griffe

DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n.*\S.*)*", re.MULTILINE)


class Recipes(griffe.Extension):
    """Tells griffe, which does not run the code, what `@recipe` and `static()` make."""

    def on_class_instance(self, *, cls: griffe.Class, **kwargs) -> None:
        for decorator in cls.decorators:
            if decorator.callable_path == "probjax.recipe.recipe":
                decorator.value = griffe.ExprName("dataclasses.dataclass")

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs) -> None:
        call = attr.value
        if isinstance(call, griffe.ExprCall) and str(call.function) == "static":
            named = (a for a in call.arguments if isinstance(a, griffe.ExprKeyword))
            attr.value = {each.name: each.value for each in named}.get("default")


class Doctests(griffe.Extension):
    """Fences examples, which Markdown would take for quotations."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(fenced, obj.docstring.value)


def fenced(example: re.Match) -> str:
    """An example in a fence of its own indentation."""
    indent = example["indent"]
    return f"{indent}```pycon\n{example[0]}\n{indent}```"
