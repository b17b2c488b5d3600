"""`probjax` on the command line."""

import argparse
from pathlib import Path


def main() -> None:
    """Run the command that was asked for."""
    parser = argparse.ArgumentParser(prog="probjax", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo", help="fit a spin glass whose answer is known, and draw the outcome"
    )
    demo.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for the figure (./out)"
    )
    given = parser.parse_args()
    from probjax.demo import run

    run(given.out)


if __name__ == "__main__":
    main()
