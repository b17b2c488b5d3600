import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.documents

ROOT = Path(__file__).parents[1]


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """What the code blocks of a document print, line by line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROBJAX_DATA", raising=False)

    def run(document):
        text = (ROOT / document).read_text()
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        assert blocks
        exec("\n".join(blocks), {})
        return capsys.readouterr().out.splitlines()

    return run


def numbers(line):
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", line)]


def test_every_code_block_of_the_readme_runs(printed, tmp_path):
    steps, triples, likelihood, summed = printed("README.md")
    plain, natural = numbers(steps)
    assert natural < plain / 2
    assert re.match(r"\d of 120 entries differ by more than 3 standard err", triples)
    _, _, _, lower, upper = numbers(likelihood)
    assert lower < float(summed) < upper
    # The truth comes to -4.486 nats, independent units to -6.125.
    assert -4.50 < float(summed) < -4.48
    assert (tmp_path / "triples.png").exists()


def test_every_code_block_on_writing_your_own_runs(printed):
    (line,) = printed("CONTRIBUTING.md")
    spread, accepted = numbers(line)
    assert abs(spread - 2) < 0.1
    assert abs(accepted - 0.3) < 0.05


def test_every_code_block_of_the_guide_runs(printed):
    worst, *path, back, apart, checked, scored = printed("docs/pages/guide.md")
    *path, drawn, digits, contact = path
    *path, third, steps, above, mixed, interval, likelihood, covered, alive = path
    assert 1 < float(worst) < 5
    start = next(i for i, line in enumerate(path) if line.startswith("L1 of"))
    fitted, path = path[:start], path[start:]
    assert fitted[0].startswith("Fit: converged after")
    assert any("couplings, sorted by |z|" in line for line in fitted)
    coupled = [int(line.split()[3]) for line in path if "pairs coupled" in line]
    assert checked.startswith("no difference between model and data was found")
    assert coupled[0] == 0
    assert coupled[-1] > 32
    assert coupled == sorted(coupled)
    assert re.match(r"\d of 560 entries differ by more than 3 standard err", third)
    white, plain = numbers(steps)
    assert white < plain / 3
    assert 0 <= float(above) < 1e-4
    assert mixed.startswith("all 16 coordinates: R-hat at most 1.0")
    assert interval.startswith("log Z from ")
    assert "(over rows), between" in likelihood
    assert covered == "True"
    assert "of 2,000 particles effective after a round" in alive
    assert drawn == "(10, 10, 64)"
    # Independent pixels come to -24.1.
    assert -22 < float(digits.split()[0]) < -15
    assert contact == "(2, 5)"
    of_stored, count, of_wide = numbers(back)
    assert of_stored < of_wide
    assert count - 2 <= of_wide <= count
    assert float(apart) < 1e-3
    score, error = numbers(scored)
    # The truth comes to -7.53, independent units to -11.09.
    assert -8.2 < score < -7.4
    assert error == 0
