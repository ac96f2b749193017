from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint.saved_graph import ConversionReport, Leftover, Match, SavedGraph
from official_lite.common import errors

SaveKeras2 = Callable[..., str]


def variable(name: str, *shape: int) -> tf.Variable:
    return tf.Variable(np.arange(np.prod(shape), dtype="float32").reshape(shape), name=name)


def test_object_saved_under_several_names_is_one_node_in_the_checkpoint_graph(
    save_keras2: SaveKeras2,
) -> None:
    backbone = {"kernel": variable("conv/kernel", 2, 3)}
    path = save_keras2(model={"_backbone": backbone}, backbone=backbone)
    checkpoint = SavedGraph(path)
    assert checkpoint.root("backbone") is checkpoint.root("model/_backbone")
    assert [t.full_name for t in checkpoint.root(None).tensors()] == ["conv/kernel"]


def test_checkpoint_graph_lists_layers_in_order_with_their_names(save_keras2: SaveKeras2) -> None:
    layers = {f"layer_with_weights-{i}": {"bias": variable(f"d{i}/bias", 1)} for i in range(11)}
    model = SavedGraph(save_keras2(model=dict(reversed(layers.items())))).root("model")
    assert [layer.layer_name for layer in model.layers] == [f"d{i}" for i in range(11)]


def test_optimizer_variables_are_not_among_the_weights_of_a_checkpoint_graph(
    save_keras2: SaveKeras2,
) -> None:
    model = {"kernel": variable("kernel", 2), "optimizer": {"iter": variable("iter")}}
    checkpoint = SavedGraph(save_keras2(model=model, optimizer=model["optimizer"]))
    assert [tensor.key for tensor in checkpoint.root(None).tensors()] == ["model/kernel"]
    assert list(checkpoint.node(0).children) == ["model"]


def test_checkpoint_graph_reads_the_value_of_a_variable(save_keras2: SaveKeras2) -> None:
    checkpoint = SavedGraph(save_keras2(kernel=variable("kernel", 2, 3)))
    (tensor,) = checkpoint.root(None).tensors()
    np.testing.assert_array_equal(checkpoint.read(tensor), [[0, 1, 2], [3, 4, 5]])


def test_checkpoint_graph_of_a_directory_is_that_of_its_latest_checkpoint(
    save_keras2: SaveKeras2, tmp_path: Path
) -> None:
    path = save_keras2(kernel=variable("kernel", 1))
    assert SavedGraph(str(tmp_path)).prefix == path


def test_tensors_of_a_name_based_checkpoint_are_read_by_name(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.ckpt")
    names = ["dense/bias", "dense/bias/Adam", "global_step"]
    values = [[1.0, 2.0], [0.0, 0.0], 7.0]
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=names, shape_and_slices=["", "", ""], tensors=values
    )
    checkpoint = SavedGraph(prefix)
    (tensor,) = checkpoint.named_tensors()
    assert (checkpoint.has_graph, tensor.full_name, tensor.shape) == (False, "dense/bias", (2,))
    np.testing.assert_array_equal(checkpoint.read(tensor), [1.0, 2.0])


def test_reading_the_graph_of_a_missing_checkpoint_raises(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "ckpt-7"):
        with pytest.raises(errors.CheckpointError, match="no checkpoint at"):
            SavedGraph(str(path))


def test_error_for_an_unknown_object_in_a_checkpoint_graph_suggests_the_nearest_name(
    save_keras2: SaveKeras2,
) -> None:
    checkpoint = SavedGraph(save_keras2(backbone={"kernel": variable("kernel", 1)}))
    with pytest.raises(errors.CheckpointError, match="`backbone`"):
        checkpoint.root("backbon")


def match(key_shape: tuple[int, ...]) -> Match:
    return Match(variable="dense/kernel", variable_shape=(2, 3), key="k", key_shape=key_shape)


def test_conversion_report_is_complete_only_without_unmatched_variables() -> None:
    leftover = (Leftover(name="x", shape=(1,)),)
    assert ConversionReport(checkpoint="ckpt-1", matched=(match((2, 3)),)).is_complete
    for kind, entries in {
        "mismatched": (match((3, 2)),),
        "ambiguous": leftover,
        "missing": leftover,
        "unexpected": leftover,
    }.items():
        assert not ConversionReport(checkpoint="ckpt-1", **{kind: entries}).is_complete


def test_conversion_report_prints_counts_and_differences() -> None:
    report = ConversionReport(
        checkpoint="ckpt-1",
        matched=(match((2, 3)),),
        mismatched=(match((3, 2)),),
        missing=(Leftover(name="head/bias", shape=(3,), candidates=("a", "b", "c", "d")),),
    )
    assert str(match((2, 3))) == "dense/kernel [2, 3] <- k", "equal shapes are shown once"
    assert str(report).splitlines() == [
        "ckpt-1: 1 variables matched",
        "  with a different shape (1):",
        "    dense/kernel [2, 3] <- k [3, 2]",
        "  missing from the checkpoint (1):",
        "    head/bias [3] (might be a, b, c, …)",
    ]
