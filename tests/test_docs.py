"""The documents name what there is, and all that there is."""

import ast
import inspect
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import jax

import probjax

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/pages"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (PAGES / "thesis.md").read_text().splitlines()
    if line.startswith("|") and "`" in line
]
DIRECTIVE = re.compile(r"^::: (\S+)\n((?: .*\n)*)", re.MULTILINE)
PACKAGES = [
    *("annealing", "connectivity", "data.spikes", "diagnostics", "exact", "natural"),
    *("plots", "samplers", "models.hopfield", "models.kinetic_ising", "models.potts"),
    "models.rbm",
]


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


def defined(path):
    """Names of the functions and classes of a file."""
    kinds = ast.FunctionDef | ast.ClassDef
    body = ast.parse(path.read_text()).body
    return {node.name for node in body if isinstance(node, kinds)}


def documented():
    """Names that the pages of the reference show, with their modules."""
    for page in (PAGES / "api").glob("*.md"):
        for module, options in DIRECTIVE.findall(page.read_text()):
            path = Path(find_spec(module).origin)
            listed = re.findall(r"- (\w+)", options)
            missing = set(listed) - defined(path)
            assert not missing, f"{page.name} lists what {module} has not: {missing}"
            names = listed if "members" in options else defined(path)
            yield from ((module, name) for name in names)


def public(package):
    """What a package exports, with the modules it comes from."""
    names = getattr(package, "__all__", dir(package))
    things = (getattr(package, name) for name in names if name[0] != "_")
    kinds = (inspect.isfunction, inspect.isclass)
    return [thing for thing in things if any(kind(thing) for kind in kinds)]


def test_every_equation_has_code_and_a_test_that_exist():
    assert len(ROWS) > 90
    tests = {}
    for row in ROWS:
        assert len(row) == 5, row
        code, checks = quoted(row[2]), quoted(row[3])
        assert code, row
        benchmarks = [name for name in code if name.startswith("benchmarks/")]
        assert checks or code == benchmarks, row
        assert all((ROOT / name).is_file() for name in benchmarks), row
        for name in set(code) - set(benchmarks):
            assert inspect.getdoc(pkgutil.resolve_name(name)), name
        for name in checks:
            path, test = name.split("::")
            known = tests.setdefault(path, defined(ROOT / path))
            assert test in known, name


def test_every_public_name_has_words_and_is_in_the_reference():
    shown = set(documented())
    packages = [pkgutil.resolve_name(f"probjax.{name}") for name in PACKAGES]
    for thing in (each for package in [probjax, *packages] for each in public(package)):
        assert inspect.getdoc(thing), thing
        assert (thing.__module__, thing.__name__) in shown, thing


def test_every_page_of_the_reference_is_in_the_menu():
    menu = (ROOT / "docs/mkdocs.yml").read_text()
    pages = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")}
    assert set(re.findall(r": (\S+\.md)", menu)) == pages


def test_every_name_of_the_reference_has_an_example():
    for module, name in documented():
        if not name.startswith("_"):
            words = inspect.getdoc(pkgutil.resolve_name(f"{module}:{name}"))
            assert ">>> " in words, f"{module}.{name}"


def slug(title):
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")


def test_links_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES.glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
            name, _, heading = link.partition("#")
            target = page.parent / name
            assert target.is_file(), f"{page.name} links to {link}"
            if heading:
                titles = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
                assert heading in map(slug, titles), f"{page.name} links to {link}"


def test_the_guide_sets_options_that_jax_has():
    (block,) = re.findall(r"```py\n(.*?)```", (PAGES / "guide.md").read_text(), re.S)
    names = re.findall(r'jax.config.update\("(\w+)"', block)
    assert len(names) == 3
    assert all(hasattr(jax.config, name) for name in names)
