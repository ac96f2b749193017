import gzip
import pathlib

import numpy as np
import pytest

from experiments.language.gpt_stdlib import configs, data, task
from official_lite import pipeline
from official_lite.common import errors


@pytest.fixture
def source_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    root = tmp_path / "lib"
    for number in range(40):
        path = root / f"package_{number % 3}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def function_{number}(x):\n    return x + {number}\n")
    for left_out in ("site-packages/numpy.py", "package_0/test/test_it.py", "package_1/notes.txt"):
        (root / left_out).parent.mkdir(exist_ok=True, parents=True)
        (root / left_out).write_text("never")
    return root


def test_each_source_file_is_in_one_split_determined_by_its_relative_path(
    source_dir: pathlib.Path,
) -> None:
    splits = [data.load_bytes(str(source_dir), split, 30) for split in ("train", "validation")]
    files = [set(split.tobytes().split(b"\0")[1:]) for split in splits]
    assert len(files[0]) + len(files[1]) == 40
    assert 4 <= len(files[1]) <= 20
    assert not any(b"never" in text for text in files[0] | files[1])
    moved = source_dir.rename(source_dir.parent / "elsewhere")
    again = data.load_bytes(str(moved), "validation", 30)
    np.testing.assert_array_equal(again, splits[1])


def test_standard_library_is_found_and_a_directory_without_python_files_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    files = {path.as_posix() for path in data.list_files()}
    assert {"json/decoder.py", "dataclasses.py"} <= files
    with pytest.raises(errors.DataError, match=r"`\*.py`"):
        data.list_files(str(tmp_path))


def test_invalid_utf_8_bytes_are_decoded_as_replacement_characters() -> None:
    stdlib = task.GptStdlibTask(configs.GptStdlibConfig())
    assert stdlib.decode([*"é".encode(), 0xFF]) == "é\ufffd"
    assert stdlib.decode(stdlib.encode("def f(): …")) == "def f(): …"


def test_run_reports_bits_per_byte_of_the_model_and_of_gzip(
    tmp_path: pathlib.Path, source_dir: pathlib.Path
) -> None:
    params = configs.gpt_stdlib()
    params.task.override({"source_dir": str(source_dir), "held_out_percent": 30})
    params.task.model.override(
        {
            "seq_length": 16,
            "num_layers": 1,
            "num_attention_heads": 1,
            "hidden_size": 8,
            "ngram_rows": 100,
        }
    )
    params.task.validation_data.eval_context = 4
    params.trainer.train_steps = 3
    params.runtime.execution = "graph"
    _, logs = pipeline.RunPipeline(params, "train_and_eval", str(tmp_path / "run")).run()
    text = data.load_bytes(str(source_dir), "validation", 30).tobytes()
    expected = 8 * len(gzip.compress(text, 9)) / len(text)
    assert logs["gzip_bits_per_byte"] == pytest.approx(expected, rel=1e-6)
    # After three steps the model has learned almost nothing.
    assert logs["bits_per_byte"] == pytest.approx(8, abs=0.5)
