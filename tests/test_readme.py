import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_every_code_block_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROBJAX_DATA", raising=False)
    exec("\n".join(blocks), {})
    divergence, worst, *path, back, apart, scored = capsys.readouterr().out.splitlines()
    *path, drawn, digits, contact = path
    *path, third, steps, above, mixed, interval, likelihood, covered, alive = path
    white, plain = (int(count) for count in re.findall(r"\d+", steps))
    assert white < plain / 3
    assert 0 <= float(above) < 1e-4
    assert mixed.startswith("all 16 coordinates: R-hat at most 1.0")
    assert interval.startswith("log Z from ")
    assert "nats per row, between" in likelihood
    assert covered == "True"
    assert "of 2,000 particles effective after a round" in alive
    assert drawn == "(10, 10, 64)"
    # Independent pixels come to -24.1.
    assert -22 < float(digits.split()[0]) < -15
    assert float(divergence) < 0.01
    assert 1 < float(worst) < 5
    coupled = [int(line.split()[3]) for line in path]
    assert coupled[0] == 0
    assert coupled[-1] > 32
    assert coupled == sorted(coupled)
    assert re.match(r"\d of 560 entries differ by more than 3 standard err", third)
    assert contact == "(2, 5)"
    assert float(apart) < 1e-3
    score, error = map(float, scored.split())
    # The truth comes to -7.53, independent units to -11.09.
    assert -8.2 < score < -7.4
    assert error == 0
    of_stored, count, of_wide = (int(number) for number in re.findall(r"\d+", back))
    assert of_stored < count / 2
    assert count - 2 <= of_wide <= count
