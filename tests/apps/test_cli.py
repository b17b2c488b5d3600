import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from small_models import all_states

import probjax
from probjax import ising, potts, rbm, storage
from probjax.apps import fitted_models
from probjax.apps.cli import main
from probjax.trees import as_array


def _rows(num_states=2):
    """Letters of which the second site mostly copies the first."""
    random = np.random.default_rng(0)
    x = random.integers(num_states, size=(200, 4))
    x[:, 1] = np.where(random.random(200) < 0.7, x[:, 0], x[:, 1])
    return x


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command in a folder of its own: its exit code, report and troubles.

    What it says while it works is left out.
    """
    monkeypatch.chdir(tmp_path)

    def run(line):
        code = main(line.split())
        printed = capsys.readouterr()
        said = printed.err.splitlines(keepends=True)
        trouble = [line for line in said if not line.endswith(" ...\n")]
        return code, printed.out, "".join(trouble)

    return run


def _entry(report, name):
    return re.search(rf"\| {name} \| (.*) \|", report).group(1)


def _number(report, name):
    return float(re.match(r"[-.\d]+", _entry(report, name)).group())


@pytest.mark.parametrize(
    ("asked", "energy", "num_states"),
    [
        ("--model ising", ising.energy, 2),
        ("--model rbm --hidden 3 --l2 0.01 --seed 3", rbm.energy, 2),
        ("--model potts", potts.energy, 3),
    ],
)
def test_what_is_printed_is_what_the_library_says(run, asked, energy, num_states):
    x = _rows(num_states)
    np.save("data.npy", x)
    code, report, notes = run(f"fit data.npy {asked} --figures figures")
    assert (code, notes) == (0, "")
    assert "200 rows of 4 sites" in report
    assert "converged" in _entry(report, "descent")
    assert os.path.getsize("figures/couplings.png") > 5000
    code, report, notes = run("evaluate model.npz data.npy --figures figures")
    assert (code, notes) == (0, "")
    params = storage.load("model.npz").params
    states = all_states(4, num_states).astype(np.float32)
    minus = -np.asarray(jax.jit(jax.vmap(energy, (None, 0)))(params, states))
    log_p = minus - np.logaddexp.reduce(minus)
    index = x @ num_states ** np.arange(4)[::-1]
    assert _number(report, "log-likelihood") == pytest.approx(
        log_p[index].mean(), abs=1e-4
    )
    shares = np.stack([(x == a).sum(0) + 1 / num_states for a in range(num_states)])
    shares = shares / (len(x) + 1)
    independent = np.log(np.take_along_axis(shares, x, axis=0)).sum(1).mean()
    assert _number(report, "independent sites") == pytest.approx(independent, abs=1e-4)
    assert os.path.getsize("figures/pairs.png") > 5000
    code, said, notes = run("sample model.npz --num 300")
    assert (code, notes) == (0, "")
    assert "300 rows of 4 sites written to samples.npy" in said
    drawn = np.load("samples.npy")
    assert drawn.shape == (300, 4)
    assert np.unique(drawn).tolist() == list(range(num_states))


@pytest.mark.parametrize("symbols", [["-1", "1"], ["no", "yes"]])
def test_rows_come_back_as_they_were_called(run, symbols):
    named = np.array(symbols)[_rows()]
    np.savetxt("x.csv", named, "%s", ",", header="a,b,c,d", comments="")
    code, report, _ = run("fit x.csv --estimator pseudolikelihood --l1 0.2")
    assert code == 0
    called = {"-1": "spins of -1 and 1", "no": "letters: no, yes"}[symbols[0]]
    assert f"after a header; {called}" in report
    assert f"seldom '{symbols[1]}' together" in _entry(report, "couplings")
    assert np.sum(np.asarray(storage.load("model.npz").params.coupling) == 0) >= 4
    assert run("sample model.npz --num 50 --out drawn.csv")[0] == 0
    head, *drawn = np.loadtxt("drawn.csv", str, delimiter=",")
    assert head.tolist() == ["a", "b", "c", "d"]
    assert set(np.unique(drawn)) == set(symbols)
    code, _, said = run("evaluate model.npz drawn.csv")
    assert (code, said) == (0, "")
    np.save("bits.npy", _rows())
    code, _, said = run("evaluate model.npz bits.npy")
    assert code == 2
    assert said.startswith("probjax: bits.npy has the letter '0', but the model was")


@pytest.mark.statistics
def test_an_annealed_interval_holds_the_sum(run, monkeypatch):
    np.savez("x.npz", train=_rows(), test=_rows()[:50])
    assert run("fit x.npz --array train --model hopfield --l2 0.001")[0] == 0
    asked = "evaluate model.npz x.npz --array test --annealing-steps 50"
    summed = run(asked)[1]
    truth = _number(summed, "log-likelihood")
    assert "interval" not in summed
    assert "log Z" not in _entry(summed, "standard error")
    monkeypatch.setattr(fitted_models, "MAX_LOG2_TERMS", 0)
    code, report, _ = run(asked)
    assert code == 0
    lower, upper = re.match(r"(\S+) to (\S+)", _entry(report, "interval")).groups()
    assert float(lower) < truth < float(upper)
    assert float(upper) - float(lower) < 0.5
    assert "annealed from both sides" in _entry(report, "log Z")
    assert len(_entry(report, "log Z")) < 100


def test_exact_likelihood_of_few_hidden_units(run):
    np.save("x.npy", _rows())
    assert run("fit x.npy --model rbm --hidden 3 --estimator likelihood")[0] == 0
    by_likelihood = _number(run("evaluate model.npz x.npy")[1], "log-likelihood")
    assert run("fit x.npy --estimator likelihood --l2 0")[0] == 0
    best_pairs = _number(run("evaluate model.npz x.npy")[1], "log-likelihood")
    counts = np.unique(_rows(), axis=0, return_counts=True)[1] / 200
    assert by_likelihood < counts @ np.log(counts)
    assert best_pairs < counts @ np.log(counts)


def test_trouble_is_one_sentence_and_a_code(run):
    x = _rows()
    np.save("x.npy", x)
    np.save("letters.npy", x + 1)
    np.save("one.npy", x[:1])
    np.save("wide.npy", np.hstack([x, x]))
    assert run("fit x.npy")[0] == 0
    with open("model.npz", "rb") as whole, open("cut.npz", "wb") as cut:
        cut.write(whole.read()[:-100])
    storage.save("other.npz", {"weights": np.zeros(3, np.float32)})
    storage.save("mixed.npz", storage.load("model.npz")._replace(family="rbm"))
    os.mkdir("folder.npz")
    np.savez("two.npz", a=x, b=x)
    np.save("spins.npy", 2 * x - 1)
    np.save("long.npy", np.repeat(x, 6, axis=1))
    for line, code, said in [
        ("fit missing.npy", 2, "missing.npy does not exist"),
        ("fit letters.npy", 2, "two letters for --model ising, got 3; use --model po"),
        ("fit letters.npy --model potts --states 2", 2, "--states must be at least 3"),
        ("fit x.npy --out model.pkl", 2, "--out must end in .npz, got model.pkl"),
        ("fit x.npy --out none/model.npz", 2, "got none/model.npz; create none"),
        ("fit x.npy --out folder.npz", 1, "directory"),
        ("evaluate model.npz wide.npy", 2, "must have 4 sites like the model, got 8"),
        ("evaluate model.npz letters.npy", 2, "letters 0 to 1 of the model, got 2"),
        ("evaluate cut.npz x.npy", 2, "cut.npz cannot be read as a probjax file"),
        ("evaluate other.npz x.npy", 2, "not contain a model written by `probjax fit`"),
        ("evaluate mixed.npz x.npy", 2, "not contain a model written by `probjax fit`"),
        ("evaluate folder.npz x.npy", 2, "folder.npz is not a file"),
        ("evaluate model.npz one.npy --figures new", 2, "must have at least two rows"),
        ("evaluate two.npz x.npy", 2, "two.npz is not a probjax model; give the model"),
        ("evaluate x.npy model.npz", 2, "x.npy is not a probjax model; give the model"),
        ("evaluate model.npz spins.npy", 2, "spins of -1 and 1, but the model was"),
        ("fit x.npy --hidden 3", 2, "--hidden requires --model rbm, got ising"),
        ("fit x.npy --states 3", 2, "--states requires --model potts, got ising"),
        ("fit x.npy --couplings J.npy", 2, "--couplings must end in .csv, got J.npy"),
        ("fit long.npy --estimator likelihood", 2, "this model has more; use --estim"),
        ("sample model.npz --out rows.txt", 2, "--out must end in .npy or .csv"),
    ]:
        found, _, told = run(line)
        assert found == code, line
        assert told.startswith("probjax: "), line
        assert said in told
        assert told.count("\n") == 1, told


def _write(name, header, x):
    np.savetxt(name, x, "%s", ",", header=header, comments="")


def test_columns_go_by_their_names(run):
    x = _rows()
    _write("x.csv", "a,b,c,d", x)
    _write("shuffled.csv", "c,a,d,b", x[:, [2, 0, 3, 1]])
    _write("other.csv", "a,b,c,e", x)
    np.save("x.npy", x)
    assert run("fit x.csv --couplings J.csv")[0] == 0
    assert storage.load("model.npz").names == ("a", "b", "c", "d")
    _, wanted, _ = run("evaluate model.npz x.csv")
    for name in ("shuffled.csv", "x.npy"):
        _, report, _ = run(f"evaluate model.npz {name}")
        assert _number(report, "log-likelihood") == _number(wanted, "log-likelihood")
        independent = _number(wanted, "independent sites")
        assert _number(report, "independent sites") == independent
    code, _, told = run("evaluate model.npz other.csv")
    assert code == 2
    assert "has the column 'e', which is not a site of the model" in told
    with open("J.csv") as file:
        assert file.readline() == "a,b,c,d\n"
        matrix = np.loadtxt(file, delimiter=",", dtype=np.float32)
    params = storage.load("model.npz").params
    np.testing.assert_array_equal(matrix, ising.coupling_matrix(params))


@pytest.mark.parametrize(
    ("asked", "num_states", "total"),
    [
        ("--model ising --l1 0.05", 2, "6 pairs are coupled"),
        ("--model hopfield --l1 0.05", 2, "6 pairs are coupled"),
        ("--model potts --l1 0.05", 3, "6 pairs are coupled"),
        ("--model rbm --hidden 3 --l1 0.002", 2, "12 weights are not zero"),
    ],
)
def test_l1_leaves_zeros_and_biases(run, asked, num_states, total):
    x = _rows(num_states)
    x[:, 3] = np.random.default_rng(2).random(200) < 0.1
    np.save("x.npy", x)
    code, report, _ = run(f"fit x.npy {asked} --couplings J.csv")
    assert code == 0
    count, rest = _entry(report, "coupled").split(" of ")
    assert rest == total
    assert 0 < int(count) < int(total.split()[0])
    assert "L1 of" in _entry(report, "estimator")
    assert np.loadtxt("J.csv", delimiter=",").shape[1] == 4
    # Sites on their own have their own frequencies, as no penalty pulls at them.
    code, report, _ = run("evaluate model.npz x.npy")
    better = _number(report, "log-likelihood") - _number(report, "independent sites")
    assert 0.01 < better < 1


def test_signs_are_as_told(run):
    x = np.random.default_rng(0).integers(2, size=(200, 4))
    x[:, 1] = np.where(np.arange(200) % 10 < 8, 1 - x[:, 0], x[:, 1])
    np.save("seldom.npy", x)
    for model, said in (("ising", "positive: seldom"), ("hopfield", "positive: often")):
        code, report, _ = run(f"fit seldom.npy --model {model} --couplings J.csv")
        assert code == 0
        assert said in _entry(report, "couplings")
        seldom = np.loadtxt("J.csv", delimiter=",")[0, 1] > 0
        assert seldom == ("seldom" in said)


def test_likely_mistakes_in_data_are_noted(run):
    x = _rows()[:3]
    x[:, 1] = 1
    _write("wide.csv", "a,b,c,d", x)
    code, report, _ = run("fit wide.csv --l1 0.01")
    assert code == 0
    assert "fewer rows (3) than sites (4): is the table transposed?" in report
    assert "never change: b" in report
    assert "; bits |" in report
    assert np.isfinite(storage.load("model.npz").params.bias).all()


def test_what_takes_long_is_said_beside_the_report(tmp_path, capsys):
    np.save(tmp_path / "x.npy", _rows())
    model = str(tmp_path / "model.npz")
    main(["fit", str(tmp_path / "x.npy"), "--out", model])
    printed = capsys.readouterr()
    doing = ("compiling and fitting", "checking the model with chains from the data")
    assert printed.err == "".join(f"probjax: {name} ...\n" for name in doing)
    assert printed.out.startswith("# ising model of x.npy")


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"probjax {probjax.__version__}\n"


def test_notes_of_the_library_are_told(run):
    np.save("x.npy", np.ones((10, 3), int))
    code, _, told = run("fit x.npy --l2 0 --max-steps 3")
    assert code == 0
    assert "probjax: note: 3 of 3 units never change" in told


@pytest.mark.parametrize(
    "line",
    [
        "",
        "dance",
        "fit",
        "fit x.npy --l2 -1",
        "fit x.npy --l1 1 --l2 1",
        "sample m --num 0",
    ],
)
def test_requests_that_make_no_sense_are_refused(run, line):
    with pytest.raises(SystemExit) as raised:
        run(line)
    assert raised.value.code == 2


@pytest.mark.parametrize("command", ["fit", "evaluate", "sample", "demo"])
def test_help_teaches_by_example(capsys, command):
    with pytest.raises(SystemExit) as raised:
        main([command, "--help"])
    assert raised.value.code == 0
    assert f"  probjax {command}" in capsys.readouterr().out


@pytest.mark.platforms
def test_the_entry_point_answers_and_returns_its_code(tmp_path):
    command = [sys.executable, "-m", "probjax.apps.cli"]
    found = subprocess.run(
        [*command, "--help"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0
    assert "probjax fit spikes.npy" in found.stdout
    found = subprocess.run(
        [*command, "fit", "none.npy"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (found.returncode, found.stderr) == (2, "probjax: none.npy does not exist\n")


def test_a_model_that_loses_to_independent_sites_is_reported(run):
    np.save("x.npy", _rows(3))
    _, report, _ = run("fit x.npy --model potts")
    assert _entry(report, "estimator") == "pseudolikelihood, L2 of 0.01 on couplings"
    _, report, _ = run("evaluate model.npz x.npy")
    assert "worse than independent sites" not in report
    model = storage.load("model.npz")
    field = -np.asarray(model.params.field) - 1.0 * np.arange(3, dtype=np.float32)
    params = potts.Params(as_array(field), model.params.coupling)
    storage.save("model.npz", model._replace(params=params))
    _, report, _ = run("evaluate model.npz x.npy")
    loss = _number(report, "independent sites") - _number(report, "log-likelihood")
    said = re.search(r"worse than independent sites, by ([.\d]+) \+-", report)
    assert float(said.group(1)) == pytest.approx(loss, rel=0.05)
