import math
import pathlib

import keras
import pytest
import tensorflow as tf

from official_lite.checkpoint import inspection
from official_lite.common import errors


def _write(directory: pathlib.Path, step: int, **values: object) -> str:
    variables = {name: tf.Variable(value) for name, value in values.items()}
    return tf.train.Checkpoint(**variables).write(str(directory / f"ckpt-{step}"))


def test_inspection_returns_name_shape_dtype_size_and_nonfinite_count_of_each_variable(
    tmp_path: pathlib.Path,
) -> None:
    prefix = _write(tmp_path, 1, a=[[1.0, math.nan, math.inf]], b=7, c="text")
    found = inspection.read(prefix)
    assert found.problems == []
    shown = [(v.name, v.shape, v.dtype, v.num_bytes, v.num_not_finite) for v in found.variables]
    assert sorted(shown) == [
        ("a", (1, 3), "float32", 12, 2),
        ("b", (), "int32", 4, 0),
        ("c", (), "string", 4, 0),
    ]


def test_inspection_reports_a_variable_with_a_flipped_bit_and_reads_all_other_variables(
    tmp_path: pathlib.Path,
) -> None:
    prefix = _write(tmp_path, 1, a=[1.0] * 100, b=[2.0] * 100)
    (path,) = tmp_path.glob("*.data-*")
    data = bytearray(path.read_bytes())
    data[4] ^= 1
    path.write_bytes(bytes(data))
    found = inspection.read(prefix)
    assert [variable.name for variable in found.variables] == ["b"]
    assert found.problems[0].startswith("a can't be read: ")
    with pytest.raises(errors.CheckpointError, match="can't be compared"):
        inspection.compare(prefix, prefix)
    path.with_name("ckpt-1.index").write_bytes(b"")
    assert len(inspection.read(prefix).problems) == 1


def test_comparison_of_two_checkpoints_is_sorted_by_kind_and_size_of_the_difference(
    tmp_path: pathlib.Path,
) -> None:
    same = {"equal": [1.0, math.nan, math.inf], "text": "x", "count": 5}
    a = _write(tmp_path, 1, **same, gone=1.0, shape=[1.0], small=[1.0, 4.0], large=[2.0], nan=[1.0])
    new = {"small": [1.0, 5.0], "large": [4.0], "nan": [math.nan], "shape": [[1.0]], "come": 1.0}
    b = _write(tmp_path, 2, **same, **new)
    found = inspection.compare(a, b)
    assert [(each.name, each.state) for each in found] == [
        ("gone", "only in a"),
        ("come", "only in b"),
        ("nan", "differs"),
        ("shape", "differs"),
        ("large", "differs"),
        ("small", "differs"),
        ("text", "equal"),
        ("count", "equal"),
        ("equal", "equal"),
    ]
    numbers = {each.name: (each.max_abs, each.relative) for each in found}
    assert numbers["small"] == (1.0, 0.25)
    assert numbers["large"] == (2.0, 1.0)
    assert numbers["nan"][0] == math.inf
    assert numbers["shape"] == (None, None)


def test_variables_are_compared_by_keras_path_instead_of_checkpoint_key(
    tmp_path: pathlib.Path,
) -> None:
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, name="head")], name="sequential"
    )
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(model.trainable_variables)
    trained = tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(tmp_path / "a-1"))
    alone = tf.train.Checkpoint(net=model).write(str(tmp_path / "b-1"))
    names = {variable.name: variable.key for variable in inspection.read(trained).variables}
    assert {"sequential/head/kernel", "sequential/head/bias"} <= names.keys()
    states = {each.name: each.state for each in inspection.compare(trained, alone)}
    assert states["sequential/head/kernel"] == states["sequential/head/bias"] == "equal"
    assert "only in a" in states.values()
    assert "only in b" not in states.values()


def test_global_step_is_read_from_a_checkpoint_without_building_the_model(tmp_path) -> None:
    step = tf.Variable(12, dtype=tf.int64)
    path = tf.train.Checkpoint(global_step=step).save(str(tmp_path / "ckpt"))
    assert inspection.read_global_step_from_checkpoint(path) == 12
    path = tf.train.Checkpoint(v=tf.Variable(1)).save(str(tmp_path / "other"))
    with pytest.raises(errors.CheckpointError, match="global_step"):
        inspection.read_global_step_from_checkpoint(path)


def test_remove_ckpts_deletes_checkpoint_files_and_no_others(tmp_path) -> None:
    tf.train.Checkpoint(v=tf.Variable(1)).save(str(tmp_path / "ckpt"))
    (tmp_path / "params.yaml").touch()
    inspection.remove_ckpts(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["params.yaml"]
