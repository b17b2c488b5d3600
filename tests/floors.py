"""Print the lowest versions that pyproject.toml allows, as constraints for pip."""

import re
import tomllib
from pathlib import Path


def floors():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    declared = tomllib.loads(text)
    project, test = declared["project"], declared["dependency-groups"]["test"]
    extras = project["optional-dependencies"].values()
    for requirement in sum(extras, project["dependencies"] + test):
        # An extra without a version is for other hardware, or consists of extras.
        if floor := re.fullmatch(r"([\w-]+)>=([\w.]+)", requirement):
            yield f"{floor[1]}=={floor[2]}"


if __name__ == "__main__":
    print(*floors(), sep="\n")
