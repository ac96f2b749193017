import json
import pathlib

import numpy as np
import pytest

from experiments.language.causal_lm import generate
from experiments.language.char_gpt import configs, data, task
from official_lite import pipeline
from official_lite.common import errors
from tests import commands, downloads

SHAKESPEARE, needs_shakespeare = downloads.needs("tinyshakespeare.txt")
TEXT = "Wer reitet so spät durch Nacht und Wind?\n" * 40


@pytest.fixture
def text_file(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def _task(path: str) -> task.CharGptTask:
    return task.CharGptTask(configs.CharGptConfig(input_path=path))


def test_text_is_in_the_order_of_its_characters_and_the_first_part_is_trained_on(text_file) -> None:
    chars = _task(text_file)
    train, validation = chars.load_tokens("train"), chars.load_tokens("validation")
    assert chars.decode([*train, *validation]) == TEXT
    assert len(train) == int(0.9 * len(TEXT))
    assert chars.vocab_size == len(set(TEXT))
    assert chars.encode("Wind") == [sorted(set(TEXT)).index(c) for c in "Wind"]


def test_character_that_the_text_has_not_is_named(text_file: str) -> None:
    with pytest.raises(errors.DataError, match="does not contain 'XY'"):
        _task(text_file).encode("WXY")


def test_missing_text_is_an_error_that_says_how_to_give_one() -> None:
    with pytest.raises(errors.ConfigValueError, match=r"--set=task\.input_path="):
        data.load_text("")


def test_file_that_is_no_text_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(errors.DataError, match="is not UTF-8 text"):
        data.load_text(str(tmp_path / "binary"))


def _train(model_dir: pathlib.Path, path: str, train_steps: int) -> list[np.ndarray]:
    """The weights after a training with a small model."""
    params = configs.char_gpt()
    params.task.input_path = path
    params.task.model.override(
        {"seq_length": 8, "num_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
    )
    params.trainer.override({"train_steps": train_steps, "checkpoint_interval": 10})
    params.runtime.execution = "graph"
    model, _ = pipeline.RunPipeline(params, "train", str(model_dir)).run()
    return [weight.numpy() for weight in model.weights]


@pytest.mark.slow
def test_resumed_training_is_the_unbroken_one_and_its_model_goes_on_with_a_text(
    tmp_path: pathlib.Path, text_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unbroken = _train(tmp_path / "unbroken", text_file, 30)
    _train(tmp_path / "run", text_file, 13)
    resumed = _train(tmp_path / "run", text_file, 30)
    for weight, other in zip(unbroken, resumed, strict=True):
        np.testing.assert_array_equal(weight, other)
    capsys.readouterr()
    generate.main([f"--model_dir={tmp_path / 'run'}", "--prompt=Wer ", "--tokens=20"])
    printed = capsys.readouterr().out
    assert printed.startswith("Wer ")
    assert len(printed) == len("Wer ") + 20 + 1
    assert set(printed) <= set(TEXT)


@pytest.mark.slow
@needs_shakespeare
def test_short_training_reaches_what_the_readme_says(tmp_path: pathlib.Path) -> None:
    command = ["train.py", "--experiment=language/char_gpt", "--mode=train_and_eval"]
    command += [f"--model_dir={tmp_path}", f"--set=task.input_path={SHAKESPEARE}"]
    command += ["--set=trainer.train_steps=200"]
    assert commands.run(command).returncode == 0
    lines = (tmp_path / "metrics.json").read_text().splitlines()
    records = [r for r in map(json.loads, lines) if r["split"] == "validation"]
    assert records[-1]["validation_loss"] <= 2.3
