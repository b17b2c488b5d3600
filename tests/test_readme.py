import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_every_code_block_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks), {})
    divergence, worst, coupled = capsys.readouterr().out.splitlines()
    assert float(divergence) < 0.01
    assert float(worst) < 0.5
    assert 28 <= int(coupled.split()[0]) <= 40
