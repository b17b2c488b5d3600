import sys

import pytest

from probjax.apps import cli, demo

pytestmark = pytest.mark.documents


def test_demo_prints_its_table_and_draws_its_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "SHAPE", (4, 4))
    monkeypatch.setattr(demo, "NUM_STATES", 5000)
    monkeypatch.setattr(demo, "VARIANCE", 0.5)
    monkeypatch.setattr(
        sys, "argv", ["probjax", "demo", "--out", str(tmp_path / "new")]
    )
    cli.main()
    printed = capsys.readouterr().out
    table = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line}
    for name in ("MPF", "pseudolikelihood"):
        coupling, correlation, divergence, held_out, _ = map(float, table[name])
        assert 0 < coupling < 0.05
        assert 0 < correlation < 1e-2
        assert 0 < divergence < 0.05
        assert held_out < 0
    figure = tmp_path / "new" / "spin-glass.png"
    assert str(figure) in printed
    assert figure.stat().st_size > 10_000


def test_unknown_commands_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["probjax", "dance"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "demo" in capsys.readouterr().err
