"""`python -m official_lite.tools weights`, and `export` of a run with an adapter."""

import json

import numpy as np
import pytest

from official_lite.adapters import adapter_files
from official_lite.checkpoint import safetensors_files
from official_lite.tools import __main__ as tools

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def adapted(trained, train_run):
    """The folder of a run that has adapted the run `trained`."""
    return train_run(f"task.init_checkpoint={trained}", "task.adapters.rank=1")


def _arrays(path):
    """Return the arrays by the last part of their names, before which Keras puts numbers."""
    file = safetensors_files.SafetensorsFile(str(path))
    return {tensor.key.split("/")[-1]: file.read(tensor) for tensor in file.tensors}


def test_merged_weights_have_the_names_of_the_base_and_train_further(
    trained, adapted, train_run, tmp_path, capsys
):
    base, merged = tmp_path / "base.safetensors", tmp_path / "merged.safetensors"
    assert tools.main(["weights", trained, f"--output={base}"]) == 0
    capsys.readouterr()
    assert tools.main(["weights", adapted, f"--output={merged}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(merged)
    before, after = _arrays(base), _arrays(merged)
    assert before.keys() == after.keys()
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert sorted(changed) == ["embeddings", "kernel"]
    assert train_run(f"task.init_checkpoint={merged}")


def test_adapter_is_written_alone_and_exported_with_its_base(trained, adapted, tmp_path, capsys):
    file = tmp_path / "adapter.safetensors"
    assert tools.main(["weights", adapted, "--adapter_only", f"--output={file}"]) == 0
    assert adapter_files.read(str(file)).config.rank == 1
    for number, arguments in enumerate(
        ([adapted], [trained, f"--adapter={file}"], [trained, f"--adapter={adapted}"])
    ):
        capsys.readouterr()
        output = f"--output={tmp_path}/{number}"
        assert tools.main(["export", *arguments, output, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["max_difference"] < 1e-5
        assert b"lora" not in b"".join(p.read_bytes() for p in tmp_path.glob(f"{number}/6/*.pb"))


def test_what_has_no_adapter_or_two_is_refused(trained, adapted, capsys):
    assert tools.main(["weights", trained, "--adapter_only"]) == 2
    assert "trained without `task.adapters`" in capsys.readouterr().err
    assert tools.main(["export", adapted, f"--adapter={adapted}"]) == 2
    assert "has an adapter of its own" in capsys.readouterr().err
    assert tools.main(["average", adapted]) == 2
    assert "factor of the mean" in capsys.readouterr().err
