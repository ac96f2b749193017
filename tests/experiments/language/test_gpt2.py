import pathlib

import numpy as np
import pytest

from experiments.language.gpt2 import configs, data, task
from experiments.language.tokenizer import library, train, write_records
from official_lite import pipeline
from official_lite.common import errors
from tests.experiments import evaluations

pytest.importorskip("tokenizers")

TEXT = "the cat sat on the mat.\nthe dog sat on the cat,\nand the mat sat there.\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Write two text files, train a tokenizer on both, and write the tokens of one as records."""
    root = tmp_path_factory.mktemp("text")
    for name in ("a.txt", "b.txt"):
        (root / name).write_text(f"{name} {TEXT}" * 10)
    train.main([f"--input_path={root}/*.txt", f"--output={root}/bpe.json", "--vocab_size=300"])
    arguments = [f"--input_path={root}/a.txt", f"--tokenizer={root}/bpe.json", "--seq_length=8"]
    write_records.main([*arguments, f"--output={root}/a.tfrecord"])
    return root


def _params(root: pathlib.Path, file_type: str):
    params = configs.gpt2()
    params.task.tokenizer_path = str(root / "bpe.json")
    params.task.model.override(
        {
            "vocab_size": 320,
            "seq_length": 8,
            "num_layers": 1,
            "num_attention_heads": 2,
            "hidden_size": 16,
        }
    )
    suffix = {"text": "txt", "tfrecord": "tfrecord"}[file_type]
    for part in (params.task.train_data, params.task.validation_data):
        part.override(
            {
                "input_path": str(root / f"a.{suffix}"),
                "file_type": file_type,
                "global_batch_size": 4,
            }
        )
    return params


def test_tokens_decode_to_the_text_and_each_file_ends_with_an_end_token(
    files: pathlib.Path,
) -> None:
    paths = (str(files / "a.txt"), str(files / "b.txt"))
    tokens = data.load_tokens(paths, str(files / "bpe.json"))
    end = library.load_tokenizer(str(files / "bpe.json")).token_to_id(train.END_OF_TEXT)
    first, second = np.split(tokens, np.flatnonzero(tokens == end)[:1] + 1)
    gpt2 = task.Gpt2Task(_params(files, "text").task)
    assert gpt2.decode(first[:-1]) == (files / "a.txt").read_text()
    assert gpt2.decode(second[:-1]) == (files / "b.txt").read_text()
    assert second[-1] == end
    assert 256 < gpt2.vocab_size <= 300


def test_tfrecord_files_contain_the_same_token_windows_as_the_text_files(
    files: pathlib.Path,
) -> None:
    def stretches(file_type: str) -> list[np.ndarray]:
        params = _params(files, file_type).task
        batches = task.Gpt2Task(params).build_inputs(params.validation_data)
        return [np.concatenate(part) for part in zip(*batches.as_numpy_iterator(), strict=True)]

    of_text, of_records = stretches("text"), stretches("tfrecord")
    # Only an evaluation of text may have a last window that overlaps the window before.
    assert 0 <= len(of_text[0]) - len(of_records[0]) <= 1
    for text, records in zip(of_text, of_records, strict=True):
        np.testing.assert_array_equal(text[: len(records)], records)


@pytest.mark.parametrize("block", ["predict_data", "test_data"])
def test_predict_and_test_modes_read_the_text_of_their_own_input_paths(
    files: pathlib.Path, block: str
) -> None:
    params = _params(files, "text").task
    params.override({block: {"input_path": str(files / "b.txt")}})
    gpt2 = task.Gpt2Task(params)
    ((first, _), *_) = gpt2.build_inputs(getattr(params, block)).as_numpy_iterator()
    assert gpt2.decode(first[0]) == (files / "b.txt").read_text()[: len(gpt2.decode(first[0]))]
    assert gpt2.decode(first[0]).startswith("b")


@pytest.mark.sample(1)
@pytest.mark.parametrize("file_type", ["text", "tfrecord"])
def test_gpt2_run_on_text_or_tfrecord_files_trains_and_evaluates(
    files: pathlib.Path, tmp_path, file_type: str
) -> None:
    params = _params(files, file_type)
    params.trainer.override({"train_steps": 2, "grad_accum_steps": 2})
    params.runtime.override({"execution": "graph", "distribution_strategy": "one_device"})
    _, logs = pipeline.RunPipeline(params, "train_and_eval", str(tmp_path)).run()
    assert logs["bits_per_token"] == pytest.approx(np.log2(320), abs=0.1)
    assert logs["validation_loss"] == pytest.approx(np.log(320), abs=0.1)


def test_missing_or_invalid_tokenizer_and_too_small_vocab_size_are_refused(
    files: pathlib.Path,
) -> None:
    with pytest.raises(errors.ConfigValueError, match=r"tokenizer\.train"):
        library.load_tokenizer("")
    with pytest.raises(errors.DataError, match="does not exist"):
        library.load_tokenizer(str(files / "bqe.json"))
    with pytest.raises(errors.DataError, match="is not a tokenizer"):
        library.load_tokenizer(str(files / "a.txt"))
    params = _params(files, "text")
    params.task.model.vocab_size = 200
    with pytest.raises(errors.ConfigValueError, match=r"`model\.vocab_size` is 200"):
        task.Gpt2Task(params.task).build_model()


@pytest.mark.slow
def test_final_evaluation_after_training_gives_the_same_metrics_as_eval_mode(
    files: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    params = _params(files, "text")
    params.trainer.grad_accum_steps = 2
    evaluations.assert_equal_to_mode_eval(params, tmp_path / "run")
