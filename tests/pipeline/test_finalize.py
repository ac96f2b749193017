import pathlib

import pytest

from official_lite import pipeline


def test_summary_is_printed_after_success_only(experiment, tmp_path, capsys) -> None:
    class Failing(pipeline.Run):
        def train(self, ctx):
            super().train(ctx)
            raise ZeroDivisionError

    pipeline.RunPipeline(experiment(), "train", str(tmp_path / "a")).run()
    assert "training_loss" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        pipeline.RunPipeline(experiment(), "train", str(tmp_path / "b"), {"run": Failing}).run()
    assert "training_loss" not in capsys.readouterr().err


def test_finalize_of_a_run_that_built_nothing_is_silent(context, capsys) -> None:
    ctx = context()
    assert pipeline.Finalize(ctx)(ctx) is None
    assert capsys.readouterr().err == ""


def test_files_are_complete_and_closed_in_finalize(experiment, records, tmp_path) -> None:
    class Finalize(pipeline.Finalize):
        def __call__(self, ctx):
            links = [path.resolve() for path in pathlib.Path("/proc/self/fd").iterdir()]
            seen.extend(path.name for path in links if path.is_relative_to(tmp_path))
            seen.append(records(tmp_path, "validation"))

    seen = []
    params = experiment(trainer={"writers": ["jsonl", "tensorboard"]})
    stages = {"finalize": Finalize}
    pipeline.RunPipeline(params, "train_and_eval", str(tmp_path), stages).run()
    assert seen == ["log.txt", [4, 8]]
    assert list((tmp_path / "validation").glob("events*"))
