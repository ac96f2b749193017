import pathlib

import pytest

from experiments.language.causal_lm import generate
from experiments.language.char_gpt import configs, data, task
from official_lite import pipeline
from official_lite.common import errors
from tests import downloads
from tests.experiments import evaluations

SHAKESPEARE, needs_shakespeare = downloads.needs("tinyshakespeare.txt")
TEXT = "Wer reitet so spät durch Nacht und Wind?\n" * 40


@pytest.fixture
def text_file(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def _task(path: str) -> task.CharGptTask:
    return task.CharGptTask(configs.CharGptConfig(input_path=path))


def test_training_split_is_the_first_90_percent_and_tokens_are_alphabet_indices(
    text_file,
) -> None:
    chars = _task(text_file)
    config = chars.task_config
    train, validation = map(chars.load_tokens, (config.train_data, config.validation_data))
    assert chars.decode([*train, *validation]) == TEXT
    assert len(train) == int(0.9 * len(TEXT))
    assert chars.vocab_size == len(set(TEXT))
    assert chars.encode("Wind") == [sorted(set(TEXT)).index(c) for c in "Wind"]


def test_undecodable_file_and_unknown_characters_are_named_in_the_error(text_file: str) -> None:
    binary = pathlib.Path(text_file).with_name("binary")
    binary.write_bytes(b"\xff\xfe\xff")
    for error, named, read in (
        (errors.ConfigValueError, r"--set=task\.input_path=", lambda: data.load_text("")),
        (errors.DataError, "binary", lambda: data.load_text(str(binary))),
        (errors.DataError, "'XY'", lambda: _task(text_file).encode("WXY")),
    ):
        with pytest.raises(error, match=named):
            read()


@pytest.mark.slow
def test_generate_command_continues_a_prompt_with_the_trained_model(
    tmp_path: pathlib.Path, text_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    params = configs.char_gpt()
    params.task.input_path = text_file
    params.task.model.override(
        {"seq_length": 8, "num_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
    )
    params.trainer.override({"train_steps": 3})
    params.runtime.execution = "graph"
    pipeline.RunPipeline(params, "train", str(tmp_path / "run")).run()
    capsys.readouterr()
    arguments = ["--experiment=language/char_gpt", f"--model_dir={tmp_path / 'run'}"]
    generate.main([*arguments, "--prompt=Wer ", "--tokens=20"])
    printed = capsys.readouterr().out
    assert printed.startswith("Wer ")
    assert len(printed) == len("Wer ") + 20 + 1
    assert set(printed) <= set(TEXT)


@pytest.mark.slow
@needs_shakespeare
def test_short_training_of_the_character_model_reaches_the_validation_loss_in_its_readme(
    tmp_path: pathlib.Path,
) -> None:
    flags = [f"--set=task.input_path={SHAKESPEARE}", "--set=trainer.train_steps=200"]
    evaluations.train_by_command("language/char_gpt", tmp_path, *flags)
    assert evaluations.validations(tmp_path)[-1]["validation_loss"] <= 2.3
