import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import file_writers, input_reader, tf_example_builder
from official_lite.data import position


@dataclasses.dataclass
class MixConfig(cfg.DataConfig):
    weights: cfg.base_config.Config | None = None


@pytest.fixture
def folder(tmp_path):
    """Write four files of eight examples each, in which `x` counts from 0 to 31."""
    for file in range(4):
        examples = [
            tf_example_builder.TfExampleBuilder().add_ints_feature("x", 8 * file + i).example
            for i in range(8)
        ]
        file_writers.write_small_dataset(examples, str(tmp_path / f"train-{file}"))
    return tmp_path


def decode(record):
    return tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([], tf.int64)})


def reader(folder, config_cls=cfg.DataConfig, *, stages=None, **fields):
    fields = {"input_path": f"{folder}/train-*", "global_batch_size": 4, **fields}
    stages = {"decoder_fn": decode, "parser_fn": lambda raw: raw["x"], **(stages or {})}
    return input_reader.InputReader(config_cls(**fields), **stages)


def batches(dataset, count=None):
    return list(dataset.take(-1 if count is None else count).as_numpy_iterator())


def test_evaluation_data_contain_every_example_once(folder):
    dataset = reader(folder, global_batch_size=5, drop_remainder=False).read()
    assert sorted(np.concatenate(batches(dataset))) == list(range(32))


def test_input_reader_calls_its_functions_in_the_documented_order(folder):
    trace = []
    stages = {
        "decoder_fn": lambda record: trace.append("decode") or decode(record),
        "sample_fn": lambda dataset: trace.append("sample") or dataset.take(20),
        "parser_fn": lambda raw: trace.append("parse") or raw["x"],
        "filter_fn": lambda x: trace.append("filter") or x % 2 == 0,
        "transform_and_batch_fn": lambda ds, context: trace.append("batch") or ds.batch(5),
        "postprocess_fn": lambda batch: trace.append("postprocess") or -batch,
    }
    (first, *_) = batches(reader(folder, stages=stages, global_batch_size=0).read())
    assert trace == ["decode", "sample", "parse", "filter", "batch", "postprocess"]
    assert first.shape == (5,)
    assert all(first <= 0)


def test_order_of_deterministic_training_data_is_fixed_by_the_seed(folder):
    read = [
        np.concatenate(
            batches(
                reader(folder, is_training=True, seed=seed, deterministic=True).read(), count=16
            )
        )
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(read[0], read[1])
    assert read[0].tolist() != read[2].tolist()


def test_cached_training_data_are_reshuffled_in_each_epoch(folder):
    dataset = reader(folder, is_training=True, cache=True, shuffle_buffer_size=32, seed=1).read()
    values = np.concatenate(batches(dataset, count=16))
    assert sorted(values[:32]) == sorted(values[32:]) == list(range(32))
    assert values[:32].tolist() != values[32:].tolist()


def test_shuffle_buffer_size_of_zero_keeps_the_order_of_a_file(folder):
    read = reader(
        folder, input_path=f"{folder}/train-0", is_training=True, shuffle_buffer_size=0
    ).read()
    assert np.concatenate(batches(read, count=4)).tolist() == [*range(8), *range(8)]


def test_hosts_read_different_files_even_without_a_seed(folder):
    hosts = [
        reader(folder, is_training=True, cache=True).read(tf.distribute.InputContext(2, host, 2))
        for host in (0, 1)
    ]
    values = [np.concatenate(batches(dataset, count=4)) for dataset in hosts]
    files = [set(v // 8) for v in values]
    assert all(len(v) == 8 for v in values)
    assert not files[0] & files[1]


def test_global_batch_is_divided_among_the_replicas(folder):
    context = tf.distribute.InputContext(1, 0, 2)
    assert batches(reader(folder).read(context))[0].shape == (2,)
    with pytest.raises(
        errors.ConfigValueError, match=r"5, which .* among 2 replicas.* valid value is 6"
    ):
        reader(folder, global_batch_size=5).read(context)


def test_every_example_reaches_exactly_one_of_two_mirrored_replicas(folder, two_replicas):
    strategy = two_replicas
    dataset = strategy.distribute_datasets_from_function(reader(folder).read)
    values = [v for batch in dataset for part in batch.values for v in part.numpy()]
    assert sorted(values) == list(range(32))


def test_input_sources_are_mixed_by_weight(folder):
    fields = {
        "input_path": cfg.base_config.Config(
            {"low": f"{folder}/train-0", "high": f"{folder}/train-3"}
        ),
        "weights": cfg.base_config.Config({"low": 1.0, "high": 0.0}),
        "is_training": True,
    }
    combine_fn = input_reader.create_combine_fn(MixConfig(**fields))
    read = reader(folder, MixConfig, stages={"combine_fn": combine_fn}, **fields).read()
    assert np.concatenate(batches(read, count=8)).max() < 8


def test_input_reader_accepts_a_dataset_of_records_from_the_caller(folder):
    given = tf.data.Dataset.range(4).map(lambda x: {"x": -x})
    read = reader(folder, stages={"decoder_fn": None}).read(dataset=given)
    assert batches(read)[0].tolist() == [0, -1, -2, -3]


def test_subclass_of_the_input_reader_may_override_get_files(folder):
    class FirstFile(input_reader.InputReader):
        def get_files(self, input_path):
            return super().get_files(input_path)[:1]

    params = cfg.DataConfig(input_path=f"{folder}/train-*", global_batch_size=8)
    assert len(batches(FirstFile(params).read())) == 1


def single_parse(raw):
    return {"x": raw["x"], "square": tf.stack([raw["x"] ** 2, -raw["x"]], axis=-1)}


SINGLE = {"decoder_fn": decode, "parser_fn": single_parse}
DECODER = input_reader.FeatureDecoder({"x": tf.io.FixedLenFeature([], tf.int64)})
BATCHED = {
    "decoder_fn": DECODER.decode,
    "parser_fn": input_reader.takes_batches(single_parse),
}
VECTORIZED = {name: input_reader.vectorize(fn) for name, fn in SINGLE.items()}


EVALUATION = {}
COMPLETE = {"drop_remainder": False, "deterministic": True}
SHUFFLED = {"is_training": True, "shuffle_buffer_size": 9, "block_length": 3, "cycle_length": 2}
CACHED = {"is_training": True, "cache": True}
CACHED_ONCE = {"cache": True, "drop_remainder": False}


@pytest.mark.parametrize(
    ("fields", "stages"),
    [
        (SHUFFLED, {}),
        (CACHED, {"sample_fn": lambda dataset: dataset.take(21)}),
        (CACHED_ONCE, {"filter_fn": lambda example: example["x"] % 3 > 0}),
        (
            SHUFFLED,
            {"filter_fn": input_reader.takes_batches(lambda batch: batch["x"] % 3 > 0)},
        ),
        (
            COMPLETE,
            {"transform_and_batch_fn": lambda dataset, context: dataset.take(15).batch(6)},
        ),
        (CACHED, {"parser_fn": single_parse}),
        (CACHED_ONCE, {"decoder_fn": decode}),
        (COMPLETE, VECTORIZED),
        (
            EVALUATION,
            {"postprocess_fn": lambda batch: {"x": tf.reverse(batch["x"], [0]), **batch}},
        ),
        (SHUFFLED, {"combine_fn": lambda named: named["a"].concatenate(named["b"])}),
    ],
    ids=lambda value: "-".join(value) or "plain",
)
def test_batch_functions_yield_the_same_elements_as_per_example_functions(folder, fields, stages):
    fields = {"global_batch_size": 10, "seed": 5, **fields}
    if "combine_fn" in stages:
        paths = {"a": f"{folder}/train-[01]", "b": f"{folder}/train-[23]"}
        fields["input_path"] = cfg.base_config.Config(paths)
    context = tf.distribute.InputContext(1, 0, 2)
    singly, whole = (
        reader(folder, stages={**SINGLE, **own, **stages}, **fields).read(context)
        for own in ({}, BATCHED)
    )
    assert singly.element_spec.keys() == whole.element_spec.keys()
    singly, whole = batches(singly, 11), batches(whole, 11)
    assert len(singly) > 2
    for one, other in zip(singly, whole, strict=True):
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name])


def test_function_marked_with_takes_batches_is_called_once_per_batch(folder):
    sizes = []

    @input_reader.takes_batches
    def decode_and_note(records):
        tf.py_function(lambda size: sizes.append(int(size)), [tf.size(records)], [])
        return DECODER.decode(records)

    dataset = reader(folder, stages={"decoder_fn": decode_and_note}, global_batch_size=5).read()
    assert dataset.element_spec.shape == (5,)
    assert len(batches(dataset)) == 6
    assert sorted(sizes) == [2, *[5] * 6]


@pytest.mark.parametrize(("size", "ends_with_prefetch"), [(None, True), (0, False)])
def test_prefetch_buffer_size_of_zero_disables_prefetching(folder, size, ends_with_prefetch):
    dataset = reader(folder, prefetch_buffer_size=size).read()
    assert ("Prefetch" in type(dataset).__name__) is ends_with_prefetch


def test_tf_data_options_are_set_from_the_config(folder):
    fields = {"deterministic": True, "ram_budget": 2, "autotune_algorithm": "GRADIENT_DESCENT"}
    options = reader(folder, prefetch_buffer_size=0, **fields).read().options()
    assert (options.deterministic, options.autotune.ram_budget) == (True, 2**31)
    algorithm = tf.data.experimental.AutotuneAlgorithm.GRADIENT_DESCENT
    assert options.autotune.autotune_algorithm == algorithm


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_path": ""}, "Set `input_path`"),
        ({"tfds_name": "mnist"}, "At most one of"),
        ({"input_path": "", "tfds_name": "mnist"}, "`tfds_split` is not specified"),
        ({"enable_tf_data_service": True}, "requires `tf_data_service_address`"),
        ({"input_path": cfg.base_config.Config({"a": "b"})}, "A combine_fn is required"),
        ({"global_batch_size": 0}, "`global_batch_size` is 0; expected 1 or more"),
        ({"autotune_algorithm": "GRADIENT_DECENT"}, "mean `GRADIENT_DESCENT`"),
    ],
)
def test_invalid_data_config_raises_an_error_that_names_the_field_or_remedy(
    folder, fields, message
):
    with pytest.raises(errors.ConfigValueError, match=message):
        reader(folder, **fields).read()


@pytest.mark.parametrize("before_batching", [False, True])
def test_tf_data_service_is_applied_before_or_after_batching_as_configured(
    folder, monkeypatch, before_batching
):
    shapes = []
    monkeypatch.setattr(
        input_reader.data_service,
        "distribute",
        lambda dataset, options, context: shapes.append(dataset.element_spec.shape) or dataset,
    )
    fields = {"enable_tf_data_service": True, "tf_data_service_address": "grpc://a:1"}
    reader(folder, apply_tf_data_service_before_batching=before_batching, **fields).read()
    assert shapes == ([[]] if before_batching else [[4]])


def _of_training(folder, batch, **kwargs):
    with position.begin_at(batch=batch, seed=7) as begin:
        dataset = reader(folder, is_training=True, **kwargs).read()
    assert begin.is_kept
    return dataset


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"cache": True},
        {"shuffle_buffer_size": 5, "block_length": 2},
        {"stages": {"filter_fn": lambda x: x % 3 > 0}},
        {"stages": {"transform_and_batch_fn": lambda dataset, context: dataset.batch(4)}},
    ],
)
def test_resumed_training_data_start_at_the_next_batch(folder, kwargs):
    unbroken = batches(_of_training(folder, 0, **kwargs), 25)
    resumed = batches(_of_training(folder, 13, **kwargs), 12)
    np.testing.assert_array_equal(resumed, unbroken[13:])


def test_resumed_run_with_a_repeated_sample_of_the_data_continues_with_the_next_batch(folder):
    fields = {
        "input_path": f"{folder}/train-0",
        "global_batch_size": 2,
        "shuffle_buffer_size": 0,
        "stages": {"sample_fn": lambda dataset: dataset.take(6)},
    }

    def read(batch):
        # Training repeats the data that `build_inputs` returns.
        return _of_training(folder, batch, **fields).repeat()

    unbroken = batches(read(0), 8)
    for batch in (2, 4):
        np.testing.assert_array_equal(batches(read(batch), 8 - batch), unbroken[batch:])


def test_mixed_input_sources_resume_exactly(folder):
    def read(batch):
        sources = {"a": f"{folder}/train-[01]", "b": f"{folder}/train-[23]"}
        weights = {"a": 0.7, "b": 0.3}
        with position.begin_at(batch=batch, seed=7):
            params = MixConfig(
                input_path=cfg.base_config.Config(sources),
                weights=cfg.base_config.Config(weights),
                global_batch_size=4,
                is_training=True,
                seed=3,
            )
            return input_reader.InputReader(
                params,
                decoder_fn=decode,
                parser_fn=lambda raw: raw["x"],
                combine_fn=input_reader.create_combine_fn(params),
            ).read()

    np.testing.assert_array_equal(batches(read(6), 5), batches(read(0), 11)[6:])


def test_input_reader_with_nondeterministic_order_does_not_use_the_resume_position(folder):
    with position.begin_at(batch=1, seed=7) as begin:
        reader(folder, is_training=True, deterministic=False).read()
    assert not begin.is_kept


@pytest.mark.parametrize(
    ("fields", "pipelines", "is_served"),
    [
        ({"is_training": True}, 2, True),
        ({}, 1, True),
        ({}, 2, False),
        ({"enable_shared_tf_data_service_between_parallel_trainers": True}, 1, False),
    ],
)
def test_evaluation_data_are_read_locally_if_the_tf_data_service_would_repeat_examples(
    folder, monkeypatch, fields, pipelines, is_served
):
    asked = []
    monkeypatch.setattr(
        input_reader.data_service,
        "distribute",
        lambda dataset, options, context: asked.append(options.gives_once) or dataset,
    )
    read = reader(
        folder,
        enable_tf_data_service=True,
        tf_data_service_address="grpc://a:1",
        trainer_id="a",
        **fields,
    )
    dataset = read.read(tf.distribute.InputContext(pipelines, 0, pipelines))
    assert asked == ([True] if is_served else [])
    # If the data are read locally, each pipeline reads its share of the 32 examples.
    if not is_served:
        assert len(np.concatenate(batches(dataset))) == 32 // pipelines


def test_tf_data_service_workers_that_read_the_same_data_read_it_in_different_orders(folder):
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    config = service.WorkerConfig(dispatcher.target.split("://")[1], heartbeat_interval_ms=10)
    workers = [service.WorkerServer(config) for _ in range(2)]
    # A single file of another `dataset_fn` can't be divided among the workers.
    read = reader(
        folder,
        input_path=f"{folder}/train-0",
        global_batch_size=8,
        is_training=True,
        enable_tf_data_service=True,
        tf_data_service_address=dispatcher.target,
        stages={"dataset_fn": lambda file: tf.data.TFRecordDataset(file)},
    )
    with position.begin_at(batch=0, seed=7):
        dataset = read.read()
    # If the workers read in the same order, most batches would come from both of them.
    seen = [batch.tobytes() for batch in batches(dataset, 60)]
    assert len(set(seen)) >= 58
    del workers


def test_workers_that_share_a_tf_data_service_train_on_different_batches(folder):
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    config = service.WorkerConfig(dispatcher.target.split("://")[1], heartbeat_interval_ms=10)
    worker = service.WorkerServer(config)
    read = []
    for trainer in range(2):
        with position.begin_at(batch=0, seed=7):
            dataset = reader(
                folder,
                is_training=True,
                enable_tf_data_service=True,
                tf_data_service_address=dispatcher.target,
            ).read(tf.distribute.InputContext(2, trainer, 2))
        read.append(np.concatenate(batches(dataset, 8)).tolist())
    assert read[0] != read[1]
    del worker


@pytest.mark.parametrize("fields", [{}, {"cache": True}, {"seed": 3}])
def test_workers_that_all_read_all_data_train_on_different_batches(folder, fields):
    def read(batch, pipeline):
        with position.begin_at(batch=batch, seed=7):
            read = reader(folder, is_training=True, sharding=False, **fields)
            dataset = read.read(tf.distribute.InputContext(2, pipeline, 2))
        return np.array(batches(dataset, 12 - batch))

    unbroken = [read(0, pipeline) for pipeline in (0, 1)]
    assert (unbroken[0] != unbroken[1]).any(axis=1).all()
    np.testing.assert_array_equal(read(5, 1), unbroken[1][5:])


def test_skip_bad_records_with_the_tf_data_service_raises(folder):
    fields = {"enable_tf_data_service": True, "tf_data_service_address": "grpc://a:1"}
    with pytest.raises(errors.ConfigValueError, match="they can't run Python"):
        reader(folder, skip_bad_records=1, **fields)
