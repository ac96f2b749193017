import tensorflow as tf
from tensorboard import context
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.plugins.graph import metadata

from official_lite.orbit import hooks


def _graphs(directory) -> dict[str, str]:
    """Return the graphs that TensorBoard shows, by run."""
    events = plugin_event_multiplexer.EventMultiplexer()
    events.AddRunsFromDirectory(str(directory))
    events.Reload()
    provider = data_provider.MultiplexerDataProvider(events, str(directory))
    names = {"experiment_id": "", "plugin_name": metadata.PLUGIN_NAME}
    found = provider.read_blob_sequences(context.RequestContext(), **names, downsample=1)
    return {
        run: str(tf.compat.v1.GraphDef.FromString(_read(provider, tags[metadata.RUN_GRAPH_NAME])))
        for run, tags in found.items()
    }


def _read(provider, blobs) -> bytes:
    [key] = [blob.blob_key for blob in blobs[0].values]
    return provider.read_blob(context.RequestContext(), blob_key=key)


def test_tensorboard_shows_the_graph_of_the_train_step(
    make_keras_trainer, make_controller, tmp_path
):
    trainer = make_keras_trainer()
    hook = hooks.GraphSummary()
    make_controller(trainer, hooks=[hook], steps_per_loop=4, model_dir=str(tmp_path)).train(8)
    graphs = _graphs(tmp_path)
    assert list(graphs) == ["graph"]
    assert "net" in graphs["graph"]
    assert "MatMul" in graphs["graph"]
    assert int(trainer.global_step) == 8


def test_graph_summary_does_not_suppress_the_summaries_of_the_train_step(
    make_keras_trainer, make_controller, tmp_path
):
    class Trainer(make_keras_trainer):
        def train_step(self, iterator):
            tf.summary.scalar("own", 1.0)
            return super().train_step(iterator)

    make_controller(
        Trainer(),
        hooks=[hooks.GraphSummary(str(tmp_path / "graph"))],
        summary_dir=str(tmp_path / "train"),
        summary_interval=1,
    ).train(2)
    [path] = (tmp_path / "train").glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    assert [e.step for e in events for v in e.summary.value if v.tag == "own"]


def test_eager_training_writes_no_graph_and_logs_a_warning(
    make_keras_trainer, make_controller, tmp_path, log_lines
):
    tf.config.run_functions_eagerly(True)
    try:
        hook = hooks.GraphSummary(str(tmp_path / "graph"))
        make_controller(make_keras_trainer(), hooks=[hook]).train(2)
    finally:
        tf.config.run_functions_eagerly(False)
    assert _graphs(tmp_path) == {}
    assert any("no graph" in line for line in log_lines)
