"""Tests of the benchmark of known numbers, which runs our programs and their references."""

import dataclasses
import json
import pathlib

import pytest

import registry_imports  # noqa: F401  (imported for its registrations)
from benchmarks import environments, report
from benchmarks.records import __main__ as benchmark
from benchmarks.records import known_numbers, programs
from official_lite.core import exp_factory
from tests.docs import shown_commands

# A reference program whose second evaluation reaches the target.
REFERENCE = """
import argparse, json, sys
parser = argparse.ArgumentParser()
parser.add_argument("--data_dir")
parser.add_argument("--seed", type=int)
parser.add_argument("--fold", type=int)
args = parser.parse_args()
assert open(args.data_dir + "/text.txt").read()
assert args.fold == args.seed
print("loading", file=sys.stderr)
for seconds, loss in ((0.25, 200.0), (0.5, 90.0 + args.seed), (0.75, 80.0 + args.seed)):
    print(json.dumps({"seconds": seconds, "loss": loss}))
"""
TINY = (
    "task.model.seq_length=8",
    "task.model.num_layers=1",
    "task.model.num_attention_heads=2",
    "task.model.hidden_size=16",
    "trainer.train_steps=2",
    "trainer.validation_interval=1",
    "runtime.execution=graph",
    "phases=[{name: training}]",
)


@pytest.fixture
def toy(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> known_numbers.Record:
    """Replace all benchmark records with a small one that reads the data set `toy`; return it."""
    script = tmp_path / "reference.py"
    script.write_text(REFERENCE)
    (tmp_path / "text.txt").write_text("Wer reitet so spät durch Nacht und Wind?\n" * 40)
    record = known_numbers.Record(
        experiment="language/char_gpt",
        metric="validation_loss",
        target=100.0,
        higher_is_better=False,
        data="toy",
        flags=("--set=task.input_path={data}/text.txt", *(f"--set={one}" for one in TINY)),
        phase="training",
        reference=str(script),
        reference_flags=("--fold={fold}",),
        reference_metric="loss",
        bar=0.7,
    )
    monkeypatch.setattr(known_numbers, "RECORDS", [record])
    monkeypatch.setitem(known_numbers.DATA_SETS, "toy", "a text")
    return record


@pytest.mark.slow
def test_results_page_shows_the_mean_and_range_of_a_metric_over_all_seeds(
    toy: known_numbers.Record, tmp_path: pathlib.Path
) -> None:
    results = tmp_path / "results"
    benchmark.main(["--seeds=2", f"--data=toy={tmp_path}", f"--results_dir={results}"])
    found = json.loads((results / "records.json").read_text())["measurements"][toy.experiment]
    assert [run["value"] for run in found["reference"]] == [81.0, 82.0]
    # The first evaluation, at 0.25 seconds, has a loss above the target.
    assert [run["seconds_to_target"] for run in found["reference"]] == [0.5, 0.5]
    assert found["ours"][0]["value"] != found["ours"][1]["value"]
    for run in found["ours"]:
        assert run["value"] < 100.0
        # The first evaluation of our program is neither at the start nor at the end of its process.
        assert 0 < run["seconds_to_target"] < run["seconds"]
    page = report.render(results)
    assert "Known numbers on real data" in page
    assert "81.5000 |" in page
    assert "81.0000 to 82.0000" in page


def test_benchmark_table_shows_never_for_a_program_that_misses_its_target_accuracy() -> None:
    record = dataclasses.replace(known_numbers.RECORDS[0], name="never", bar=0.7)
    early, late = benchmark.Training(1.0, 9.0, 3.0), benchmark.Training(2.0, 9.0, None)
    for ours, reference, cells in (
        ([early], [early], [3.0, 3.0, 1.0]),
        ([late], [early], ["never", 3.0, "never"]),
        ([early], [late], [3.0, "never", None]),
        ([early], [], [3.0, None, None]),
    ):
        _, seconds = benchmark.tabulate([record], {"never": {"ours": ours, "reference": reference}})
        assert list(seconds.rows[0][1:4]) == cells


def test_failed_benchmark_is_omitted_from_the_results_and_its_error_is_printed(
    toy: known_numbers.Record,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = dataclasses.replace(toy, flags=("--set=trainer.train_stepz=2",))
    monkeypatch.setattr(known_numbers, "RECORDS", [wrong])
    with pytest.raises(SystemExit, match="1"):
        benchmark.main([f"--data=toy={tmp_path}", f"--results_dir={tmp_path}"])
    told = capsys.readouterr().err
    assert "language/char_gpt failed and is omitted" in told
    assert "Did you mean `train_steps`" in told
    assert json.loads((tmp_path / "records.json").read_text())["measurements"] == {}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["language/chargpt"], "language/char_gpt"),
        (["language/char_gpt"], "--data toy=DIR, a directory with a text"),
        (["--data=toy=/no/such/directory"], "expected a directory with a text"),
        (["--data=toys=/"], "Did you mean `toy`"),
        (["--data=/"], "is not NAME=DIR"),
    ],
)
def test_unknown_benchmark_name_or_missing_data_set_exits_before_any_program_runs(
    toy: known_numbers.Record,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(arguments)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("record", known_numbers.RECORDS, ids=lambda record: record.name)
def test_each_published_benchmark_has_an_existing_experiment_reference_program_and_environment(
    record: known_numbers.Record,
) -> None:
    assert record.experiment in exp_factory.list_experiments()
    assert not record.reference or (programs.REFERENCES / record.reference).is_file()
    assert record.environment in environments.REQUIREMENTS
    assert record.data in {"", *known_numbers.DATA_SETS}


@pytest.mark.parametrize("record", known_numbers.RECORDS, ids=lambda record: record.name)
def test_train_command_accepts_the_flags_of_each_published_benchmark_for_three_seeds(
    record: known_numbers.Record, tmp_path: pathlib.Path
) -> None:
    for seed in (1, 2, 3):
        flags = [benchmark.fill_in(flag, tmp_path, seed) for flag in record.flags]
        shown_commands.check_train_flags([f"--experiment={record.experiment}", *flags])
