import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import model_state
from official_lite.common import errors
from official_lite.tools.exporting import run_model

EMA = "trainer.optimizer_config.ema.average_decay=0.5"


def _kernel(ctx):
    return ctx.model.blocks[1].kernel.numpy()


def test_model_gets_its_variables_and_the_weights_of_a_checkpoint(read_run, trained):
    with run_model.built(read_run(trained).params) as (ctx, _):
        kernels = []
        for step in (2, 6):
            run_model.load_weights(ctx, os.path.join(trained, f"ckpt-{step}"))
            kernels.append(_kernel(ctx))
        assert run_model.find_checkpoint(trained) == os.path.join(trained, "ckpt-6")
    assert (kernels[0] != kernels[1]).all()


def test_averaged_weights_are_those_that_count(read_run, train_run):
    run_dir = train_run(EMA)
    path = os.path.join(run_dir, "ckpt-6")
    with run_model.built(read_run(run_dir).params) as (ctx, _):
        run_model.load_weights(ctx, path)
        averaged = _kernel(ctx)
        ctx.optimizer.swap_weights()
        swapped = _kernel(ctx)
        items = model_state.weight_items(ctx.model)
        run_model.read_checkpoint(tf.train.Checkpoint(**items), path)
        trained = _kernel(ctx)
    np.testing.assert_array_equal(swapped, trained)
    assert (averaged != trained).all()


def test_checkpoint_that_is_not_to_be_used_says_why(read_run, trained, train_run, tmp_path):
    with run_model.built(read_run(train_run("task.units=2")).params) as (ctx, _):
        with pytest.raises(errors.CheckpointError, match="can't be restored"):
            run_model.load_weights(ctx, os.path.join(trained, "ckpt-6"))
        shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
        (tmp_path / "ckpt-6.index").write_bytes(b"")
        with pytest.raises(errors.CheckpointError, match=r"is damaged: .*has 0 bytes"):
            run_model.load_weights(ctx, str(tmp_path / "ckpt-6"))
    with pytest.raises(errors.CheckpointError, match="No checkpoint found at"):
        run_model.find_checkpoint(str(tmp_path / "none"))
