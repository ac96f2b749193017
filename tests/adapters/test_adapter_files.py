"""Several adapters on one base: each is loaded from its run or from a safetensors file."""

import numpy as np
import pytest

from official_lite.adapters import adapter_files, configs, lora
from official_lite.common import errors
from tests.adapters.conftest import ROWS, load_base, train


def test_each_adapter_of_one_base_is_loaded_from_its_run_or_file(base, adapted, run, tmp_path):
    params = adapted({"alpha": 3.0, "trainable": ["norm/"]}, task={"slope": 5.0})
    other = train(params, tmp_path / "other")
    model = load_base(base)
    adapter = adapter_files.load(model, str(tmp_path / "other"))
    np.testing.assert_array_equal(model(ROWS), other(ROWS))
    file = str(tmp_path / "other.safetensors")
    adapter_files.save(adapter, file)
    adapter_files.assign(adapter, f"{run[0]}/ckpt-8")
    np.testing.assert_array_equal(model(ROWS), run[1](ROWS))
    adapter_files.assign(adapter, file)
    np.testing.assert_array_equal(model(ROWS), other(ROWS))
    assert adapter_files.read(file).config.alpha == 3.0


def test_adapter_of_another_base_or_config_is_refused(base, run) -> None:
    model = load_base(base)
    model.head.bias.assign([7.0])
    with pytest.raises(errors.CheckpointError, match=r"does not fit.*another base"):
        adapter_files.load(model, run[0])
    adapter = lora.enable(load_base(base), configs.AdaptersConfig(rank=1))
    with pytest.raises(errors.CheckpointError, match="`rank` was 2, and is 1"):
        adapter_files.assign(adapter, run[0])


def test_what_holds_no_adapter_is_refused(base, tmp_path) -> None:
    with pytest.raises(errors.CheckpointError, match="holds no adapter"):
        adapter_files.read(base)
    with pytest.raises(errors.CheckpointError, match="No adapter found"):
        adapter_files.read(str(tmp_path))
