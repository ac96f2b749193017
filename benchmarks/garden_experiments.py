"""Train and evaluate one step of every experiment of the Model Garden, on generated data.

Run `run` with Keras 2 and the wheel, and with `official_lite` and the port; then compare::

    PYTHONPATH=wheel keras2-python benchmarks/garden_experiments.py run DIR keras2.json [NAME ...]
    PYTHONPATH=ported:. python benchmarks/garden_experiments.py run DIR keras3.json [NAME ...]
    python benchmarks/garden_experiments.py compare keras2.json keras3.json

With `official_lite`, an experiment is run by `train.py --dry_run`, otherwise by `run_experiment`.
Data sets are replaced by a few generated records with the same features; `overrides` makes further
changes so that an experiment fits a small machine. `run` skips experiments that the output file
already contains.
"""

import importlib
import importlib.util
import io
import json
import os
import pathlib
import signal
import string
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

RECORDS = 8
SIDE = 320
SECONDS = 900
LITE = importlib.util.find_spec("official_lite") is not None


def feature(value: Any) -> tf.train.Feature:
    values = np.ravel(value).tolist() if not isinstance(value, (bytes, list)) else value
    values = values if isinstance(values, list) else [values]
    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(**values: Any) -> tf.train.Example:
    features = {name.replace("__", "/"): feature(value) for name, value in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=features))


def encoded(pixels: np.ndarray, form: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels.astype("uint8")).save(stream, form)
    return stream.getvalue()


def picture(rng: np.random.Generator, index: int) -> tf.train.Example:
    """Create an image with the labels, boxes, masks and segments of all image tasks."""
    low = rng.uniform(0.05, 0.4, size=(2, 3))
    high = low + rng.uniform(0.2, 0.5, size=(2, 3))
    masks = []
    for top, left, bottom, right in zip(*low, *high, strict=True):
        mask = np.zeros((SIDE, SIDE), "uint8")
        mask[int(top * SIDE) : int(bottom * SIDE), int(left * SIDE) : int(right * SIDE)] = 1
        masks.append(encoded(mask, "PNG"))
    segments = encoded(rng.integers(0, 5, size=(SIDE, SIDE)), "PNG")
    image = encoded(rng.integers(0, 256, size=(SIDE, SIDE, 3)), "JPEG")
    return example(
        image__encoded=image,
        image__height=SIDE,
        image__width=SIDE,
        image__source_id=str(index + 1).encode(),
        image__class__label=int(rng.integers(1, 5)),
        image__object__bbox__ymin=low[0],
        image__object__bbox__xmin=low[1],
        image__object__bbox__ymax=high[0],
        image__object__bbox__xmax=high[1],
        image__object__class__label=rng.integers(1, 5, size=3),
        image__object__area=(high - low).prod(axis=0) * SIDE**2,
        image__object__is_crowd=[0, 0, 0],
        image__object__mask=masks,
        image__segmentation__class__encoded=segments,
    )


def clip(rng: np.random.Generator, index: int) -> tf.train.SequenceExample:
    frames = [encoded(rng.integers(0, 256, size=(128, 128, 3)), "JPEG") for _ in range(70)]
    return tf.train.SequenceExample(
        context=tf.train.Features(feature={"clip/label/index": feature(index % 4)}),
        feature_lists=tf.train.FeatureLists(
            feature_list={
                "image/encoded": tf.train.FeatureList(feature=[feature(one) for one in frames])
            }
        ),
    )


def volume(rng: np.random.Generator, index: int) -> tf.train.Example:
    """Create a volume of 32³ voxels with two channels and two classes, as raw float32."""
    label = np.eye(2, dtype="float32")[rng.integers(0, 2, size=(32, 32, 32))]
    image = rng.normal(size=(32, 32, 32, 2)).astype("float32")
    return example(image__encoded=image.tobytes(), image__class__label=label.tobytes())


def tokens(rng: np.random.Generator, length: int, masked: int, label: Any) -> tf.train.Example:
    """Create token features for all text tasks, under both the old and the new feature names."""
    ids, ones = rng.integers(5, 100, size=length), np.ones(length, "int64")
    kinds = (np.arange(length) > length // 2).astype("int64")
    return example(
        input_word_ids=ids,
        input_ids=ids,
        input_mask=ones,
        input_type_ids=kinds,
        segment_ids=kinds,
        masked_lm_positions=rng.permutation(length)[:masked],
        masked_lm_ids=rng.integers(5, 100, size=masked),
        masked_lm_weights=[1.0] * masked,
        next_sentence_labels=1,
        label_ids=label,
        start_positions=3,
        end_positions=5,
        unique_ids=7,
        example_id=7,
    )


def boxed_picture(rng: np.random.Generator, index: int) -> dict[str, Any]:
    """Create an image with boxes in the format of the TFDS dataset `coco`."""
    low = rng.uniform(0.05, 0.4, size=(3, 2))
    boxes = np.concatenate([low, low + 0.3], axis=1).astype("float32")
    objects = {"bbox": boxes, "label": rng.integers(1, 5, size=3), "is_crowd": np.zeros(3, bool)}
    image = rng.integers(0, 256, size=(SIDE, SIDE, 3)).astype("uint8")
    return {"image": image, "image/id": index, "objects": objects}


WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "then"]
WORDS += ["it", "was", "red", "blue", "very", "small", "big"]


def sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, size=12)) + "."


class Data:
    """Generated files, each written when it is first requested."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _records(self, name: str, make: Any) -> str:
        path = self._folder / f"{name}.tfrecord"
        if not path.exists():
            rng = np.random.default_rng(0)
            with tf.io.TFRecordWriter(str(path)) as writer:
                for index in range(RECORDS):
                    writer.write(make(rng, index).SerializeToString())
        return str(path)

    def pictures(self) -> str:
        return self._records("pictures", picture)

    def clips(self) -> str:
        return self._records("clips", clip)

    def volumes(self) -> str:
        return self._records("volumes", volume)

    def tokens(self, length: int, masked: int, labels: int) -> str:
        def make(rng: np.random.Generator, index: int) -> tf.train.Example:
            return tokens(rng, length, masked, index % 2 if labels == 1 else [1] * labels)

        return self._records(f"tokens-{length}-{masked}-{labels}", make)

    def texts(self) -> str:
        def make(rng: np.random.Generator, index: int) -> tf.train.Example:
            text = [sentence(rng).encode() for _ in range(4)]
            article = "\n".join(sentence(rng) for _ in range(20)).encode()
            return example(
                sentence1=text[0], sentence2=text[1], de=text[2], en=text[3], unique_id=index,
                text=article, title=text[0], label=index % 2, idx=index,
            )  # fmt: skip

        return self._records("texts", make)

    def tfds(self) -> str:
        """Write the TFDS data set `boxed_pictures`, and return the directory of data sets."""
        if not (self._folder / "boxed_pictures").exists():
            import tensorflow_datasets as tfds

            rng = np.random.default_rng(0)
            examples = [boxed_picture(rng, index) for index in range(RECORDS)]
            sequence = {
                "bbox": tfds.features.BBoxFeature(),
                "label": np.int64,
                "is_crowd": np.bool_,
            }
            tfds.dataset_builders.store_as_tfds_dataset(
                name="boxed_pictures",
                version="1.0.0",
                data_dir=self._folder,
                split_datasets={
                    split: (one for one in examples) for split in ("train", "validation")
                },
                features=tfds.features.FeaturesDict(
                    {
                        "image": tfds.features.Image(encoding_format="jpeg"),
                        "image/id": np.int64,
                        "objects": tfds.features.Sequence(sequence),
                    }
                ),
            )
        return str(self._folder)

    def vocabulary(self) -> str:
        path = self._folder / "vocab.txt"
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words = dict.fromkeys([*WORDS, *string.ascii_lowercase])
        endings = [f"##{letter}" for letter in string.ascii_lowercase]
        path.write_text("\n".join([*special, *words, *endings, "."]))
        return str(path)

    def sentencepiece(self) -> str:
        path = self._folder / "pieces.model"
        if not path.exists():
            import sentencepiece

            rng = np.random.default_rng(0)
            sentencepiece.SentencePieceTrainer.Train(
                sentence_iterator=iter([sentence(rng) for _ in range(500)]),
                model_prefix=str(path.with_suffix("")),
                vocab_size=40,
                hard_vocab_limit=False,
                pad_id=0,
                eos_id=1,
                unk_id=2,
                bos_id=-1,
            )
        return str(path)

    def questions(self) -> str:
        path = self._folder / "squad.json"
        text = "the small cat sat on the mat and the big dog ran under the tree."
        answer = {"answer_start": text.index("mat"), "text": "mat"}
        questions = [
            {"id": f"q{n}", "question": "it sat on?", "answers": [answer], "is_impossible": False}
            for n in range(RECORDS)
        ]
        paragraphs = [{"context": text, "qas": questions}]
        path.write_text(
            json.dumps({"version": "1", "data": [{"title": "t", "paragraphs": paragraphs}]})
        )
        return str(path)


def overrides(config: dict[str, Any], data: Data) -> dict[str, Any]:
    """Return overrides for the data of an experiment and for fields that are too large or unset."""
    task = config["task"]
    model = task.get("model") or {}
    encoder = model.get("encoder") or {}
    changed: dict[str, Any] = {"model": _model_overrides(model)}
    for split in ("train_data", "validation_data"):
        if (given := task.get(split)) is not None:
            if encoder.get("type") == "bigbird":
                # BigBird attends to random positions below 1024, so sequences have this length.
                given = {**given, "seq_length": 1024}
            changed[split] = _data_overrides(given, data, training=split == "train_data")
            if given.get("output_size") == []:
                changed[split]["output_size"] = {**model, **changed["model"]}["input_size"][:2]
    for name, value in (("init_checkpoint", ""), ("annotation_file", "")):
        if task.get(name):
            changed[name] = value
    if "sentencepiece_model_path" in task:
        changed["sentencepiece_model_path"] = data.sentencepiece()
    if "class_names" in task:
        changed["class_names"] = ["one", "two"]
    if not task.get("train_data", {}).get("is_ssl", True):
        # The linear classifier takes its size from this field instead of `num_classes`.
        changed["model"]["projection_dim"] = task["train_data"]["num_classes"]
    runtime: dict[str, Any] = {"distribution_strategy": "off"}
    if config["runtime"].get("mixed_precision_dtype"):
        runtime["mixed_precision_dtype"] = "float32"
    if "darknet_based_model" in model:
        # The loss gathers at indices of -1, which is an error on a CPU without XLA.
        runtime["enable_xla"] = True
    optimization = _optimization(config["trainer"].get("optimizer_config") or {})
    return {"task": changed, "runtime": runtime, "trainer": {"optimizer_config": optimization}}


def _model_overrides(model: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if "pre_nms_top_k" in (model.get("detection_generator") or {}):
        # Without an accelerator, computing the overlaps of 5,000 boxes per class takes minutes.
        changed["detection_generator"] = {"pre_nms_top_k": 100}
    size = model.get("input_size")
    backbone = model.get("backbone") or {}
    # Attention windows and learned positions require the configured image size.
    fixed = backbone.get("type") in ("maxvit", "vit", "detr")
    windows = (backbone.get("maxvit") or {}).get("window_size")
    if backbone.get("type") == "maxvit" and windows and size and size[0] % (32 * windows):
        changed["input_size"] = [256, 256, 3]
        changed["backbone"] = {"maxvit": {"window_size": 8, "grid_size": 8}}
    if backbone.get("type") == "hourglass":
        # The widest layers have eight times as many channels.
        changed["backbone"] = {"hourglass": {"input_channel_dims": 16}}
    if size == [] or (size and 0 in size):
        changed["input_size"] = [128, 128, 3]
    elif size and size[0] and size[0] > 256 and not fixed:
        changed["input_size"] = [256, 256, 3]
    if model.get("num_classes") == 0:
        changed["num_classes"] = 5
    if "boxes" in (anchors := model.get("anchor_boxes") or {}) and not anchors["boxes"]:
        sizes = [12, 16, 24, 32, 48, 64, 96, 128, 192]
        changed["anchor_boxes"] = {"boxes": [{"box": [size, size]} for size in sizes]}
    encoder = model.get("encoder") or {}
    kind = encoder.get("type")
    if "num_layers" in (encoder.get(kind) or {}):
        changed["encoder"] = {kind: {"num_layers": 2}}
    if "embedding_width" in model:
        changed["embedding_width"] = 128
        changed |= {part: {"num_layers": 2} for part in ("encoder", "decoder")}
    return changed


def _optimization(config: dict[str, Any]) -> dict[str, Any]:
    """Return the optimizer fields that users must set: all fields, or only schedule lengths."""
    if "optimizer" in config and not config["optimizer"]["type"]:
        rate = {"type": "constant", "constant": {"learning_rate": 0.01}}
        return {"optimizer": {"type": "sgd"}, "learning_rate": rate}
    result: dict[str, Any] = {}
    for kind in ("learning_rate", "warmup"):
        chosen = (config.get(kind) or {}).get("type")
        for name, value in ((config.get(kind) or {}).get(chosen) or {}).items():
            if value is None and name in ("decay_steps", "warmup_steps", "total_decay_steps"):
                steps = 10 if name == "warmup_steps" else 100
                result.setdefault(kind, {}).setdefault(chosen, {})[name] = steps
    return result


def _data_overrides(given: dict[str, Any], data: Data, *, training: bool) -> dict[str, Any]:
    new: dict[str, Any] = {"global_batch_size": 2, "is_training": training}
    if "shuffle_buffer_size" in given:
        new["shuffle_buffer_size"] = 2
    if "seq_length" in given:
        new["seq_length"] = given["seq_length"]
    for name, value in (("tfds_name", ""), ("cycle_length", 1), ("file_type", "tfrecord")):
        if given.get(name):
            new[name] = value
    if "num_examples" in given:
        new["num_examples"] = RECORDS
    if given.get("num_classes", 1) < 1:
        new["num_classes"] = 5
    if "sentencepiece_model_path" in given:
        new |= {"input_path": data.texts(), "max_seq_length": 32, "global_batch_size": 64}
        new |= {"src_lang": "de", "tgt_lang": "en"}
    elif "text_field_names" in given:
        new |= {"input_path": data.texts(), "vocab_file_path": data.vocabulary()}
    elif "text_fields" in given:
        new |= {"input_path": data.texts(), "vocab_file": data.vocabulary()}
        new |= {"text_fields": ["sentence1", "sentence2"], "label_field": "label"}
    elif "query_length" in given:
        new |= {"input_path": data.tokens(given["seq_length"], 1, 1)}
        if not training:
            pieces = given["tokenization"] == "SentencePiece"
            vocabulary = data.sentencepiece() if pieces else data.vocabulary()
            new |= {"input_path": data.questions(), "vocab_file": vocabulary}
    elif "seq_bucket_lengths" in given:
        new |= {"input_path": data.tokens(128, 20, 1), "seq_bucket_lengths": [128]}
    elif "include_sentence_id" in given:
        new |= {"input_path": data.tokens(given["seq_length"], 1, given["seq_length"])}
    elif "seq_length" in given:
        masked = given.get("max_predictions_per_seq", 1)
        new |= {"input_path": data.tokens(given["seq_length"], masked, 1)}
        if "label_field" in given:
            new["label_field"] = "label_ids"
    elif "feature_shape" in given:
        new |= {"input_path": data.clips(), "feature_shape": [8, 112, 112, 3]}
        new["temporal_stride"] = 1
    elif "num_channels" in given:
        new |= {"input_path": data.volumes(), "file_type": "tfrecord"}
    elif given.get("tfds_name") and "resize_scales" in given:
        new |= {"tfds_name": "boxed_pictures", "tfds_data_dir": data.tfds()}
    else:
        new["input_path"] = data.pictures()
    return new


# Patterns of modules that register experiments, tasks, models or optimizers.
_PLACES = ["tasks/*.py", "modeling/*.py", "modeling/*/*.py", "optimization/*.py", "*_task.py"]


def register_all() -> dict[str, str]:
    """Import all modules that register something, and return the errors of those that fail."""
    root = pathlib.Path(importlib.import_module("official").__path__[0])
    paths = [path for path in root.rglob("*.py") if "register_config_factory(" in path.read_text()]
    for place in _PLACES:
        for folder in ("*", "projects/*", "projects/*/*"):
            found = root.glob(f"{folder}/{place}")
            paths += [path for path in found if "register_" in path.read_text()]
    errors = {}
    for path in dict.fromkeys(sorted(paths)):
        if path.name.endswith("_test.py") or path.name == "exp_factory.py":
            continue
        name = ".".join(["official", *path.relative_to(root).with_suffix("").parts])
        try:
            importlib.import_module(name)
        except Exception as error:  # Import errors are part of the results.
            errors[name] = f"{type(error).__name__}: {error}"
    return errors


def factory() -> Any:
    return importlib.import_module(f"{'official_lite' if LITE else 'official'}.core.exp_factory")


def experiments(registry: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in registry.items():
        if isinstance(value, dict):
            yield from experiments(value, f"{prefix}{name}/")
        else:
            yield prefix + name


def run_one(name: str, folder: pathlib.Path) -> None:
    config = factory().get_exp_config(name)
    changes = overrides(config.as_dict(), Data(folder / "data"))
    print(json.dumps(changes), flush=True)
    if not LITE:
        _run_keras2(config, changes, folder)
        return
    from official_lite.tools import train

    path = folder / f"{os.getpid()}.yaml"
    path.write_text(json.dumps(changes))
    sys.argv = ["train.py", f"--experiment={name}", f"--config_file={path}", "--dry_run"]
    sys.argv += [f"--mode={_mode(config)}", f"--model_dir={folder / str(os.getpid())}"]
    train.main()


def _mode(config: Any) -> str:
    """Return the mode: `train` for self-supervised tasks, because they can't be evaluated."""
    is_ssl = config.task.as_dict().get("train_data", {}).get("is_ssl")
    return "train" if is_ssl else "train_and_eval"


def _run_keras2(config: Any, changes: dict[str, Any], folder: pathlib.Path) -> None:
    from official.core import task_factory, train_lib

    config.override(changes, is_strict=False)
    config.override(
        {"trainer": {"train_steps": 1, "validation_steps": 1, "steps_per_loop": 1,
                     "validation_interval": 1, "summary_interval": 1, "checkpoint_interval": 1,
                     "best_checkpoint_export_subdir": ""}},
        is_strict=False,
    )  # fmt: skip
    model_dir = folder / f"run-{os.getpid()}"
    with tf.distribute.get_strategy().scope():
        task = task_factory.get_task(config.task, logging_dir=str(model_dir))
    train_lib.run_experiment(
        distribution_strategy=tf.distribute.get_strategy(), task=task, mode=_mode(config),
        params=config, model_dir=str(model_dir),
    )  # fmt: skip


def in_child(name: str, folder: pathlib.Path) -> dict[str, Any]:
    """Run an experiment in a forked process, which inherits the imported modules."""
    log = folder / f"{name.replace('/', '_')}.{'keras3' if LITE else 'keras2'}.log"
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = 1
        try:
            run_one(name, folder)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(bool(error.code))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    done, status = os.waitpid(pid, os.WNOHANG)
    while not done and time.monotonic() - start < SECONDS:
        time.sleep(0.2)
        done, status = os.waitpid(pid, os.WNOHANG)
    if not done:
        os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    lines = log.read_text(errors="replace").strip().splitlines()
    errors = [line for line in lines if "Error" in line or "error" in line]
    return {
        "passes": status == 0,
        "seconds": round(time.monotonic() - start),
        "timeout": not done,
        "error": "" if status == 0 else (errors or lines or [""])[-1][:300],
    }


def run(folder: pathlib.Path, output: pathlib.Path, names: list[str]) -> None:
    results = json.loads(output.read_text()) if output.exists() else {}
    folder.mkdir(parents=True, exist_ok=True)
    errors = register_all()
    for module, error in errors.items():
        print(f"{module} can't be imported: {error}")
    for name in names or sorted(experiments(factory()._REGISTERED_CONFIGS)):
        if name in results and not names:
            continue
        results[name] = in_child(name, folder)
        print(name, results[name], flush=True)
        output.write_text(json.dumps(results, indent=1))


def compare(keras2: pathlib.Path, keras3: pathlib.Path) -> None:
    old, new = json.loads(keras2.read_text()), json.loads(keras3.read_text())
    for name in sorted(old | new):
        print(name, _state(old.get(name)), _state(new.get(name)), sep=" | ")
    there = [name for name, result in old.items() if result["passes"]]
    here = [name for name in there if new.get(name, {}).get("passes")]
    print(f"{len(here)} of the {len(there)} experiments that pass with Keras 2 pass with Keras 3")


def _state(result: dict[str, Any] | None) -> str:
    if result is None:
        return "not run"
    return "passes" if result["passes"] else str(result["error"])


if __name__ == "__main__":
    first, second = map(pathlib.Path, sys.argv[2:4])
    if sys.argv[1] == "run":
        run(first, second, sys.argv[4:])
    else:
        compare(first, second)
