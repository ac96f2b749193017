"""Compare models of the Model Garden on Keras 2 with the same models, ported, on Keras 3.

Run `write` with the Model Garden and Keras 2, then `read` with `official_lite` and the port::

    PYTHONPATH=wheel keras2-python benchmarks/garden.py write DIR [MODEL ...]
    PYTHONPATH=ported:. python benchmarks/garden.py read DIR [MODEL ...]

`write` trains each model for a few steps, saves a checkpoint with the model and the optimizer,
records the outputs, and trains for another 50 steps. `read` resumes from the checkpoint and
compares the outputs and the losses of the 50 steps. The models are tiny, and dropout is off.

To tell rounding from other differences, `write` trains the 50 steps twice. The second time, each
weight starts from the float next to its value. The distance between the losses of both runs
shows how much of a difference rounding alone makes with Keras 2.
"""

import importlib
import json
import pathlib
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

FIRST_STEPS, STEPS = 3, 50


def official(name: str) -> Any:
    return importlib.import_module(f"official.{name}")


def keras() -> ModuleType:
    return importlib.import_module("tf_keras" if sys.argv[1] == "write" else "keras")


class Case(NamedTuple):
    model: Any
    inputs: Any
    call: Callable[..., Any] | None = None


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def images(*shape: int) -> Any:
    return tf.constant(rng().normal(size=shape).astype("float32"))


def tokens(batch: int = 2, length: int = 16, vocabulary: int = 50) -> Any:
    return tf.constant(rng().integers(1, vocabulary, size=(batch, length)), tf.int32)


def words() -> dict[str, Any]:
    return {
        "input_word_ids": tokens(),
        "input_mask": tf.ones((2, 16), tf.int32),
        "input_type_ids": tf.zeros((2, 16), tf.int32),
    }


def classifier(backbone: dict[str, Any], size: int = 96) -> Case:
    factory = official("vision.modeling.factory")
    configs = official("vision.configs.image_classification")
    config = configs.ImageClassificationModel(
        num_classes=5, input_size=[size, size, 3], dropout_rate=0.0
    )
    config.override({"backbone": backbone})
    specs = keras().layers.InputSpec(shape=[None, size, size, 3])
    return Case(factory.build_classification_model(specs, config), images(8, size, size, 3))


def resnet() -> Case:
    return classifier({"type": "resnet", "resnet": {"model_id": 18, "depth_multiplier": 0.25}})


def mobilenet() -> Case:
    mobile = {"model_id": "MobileNetV2", "filter_size_scale": 0.35}
    return classifier({"type": "mobilenet", "mobilenet": mobile})


def efficientnet() -> Case:
    net = {"model_id": "b0", "stochastic_depth_drop_rate": 0.0}
    return classifier({"type": "efficientnet", "efficientnet": net})


def vit() -> Case:
    transformer = {"mlp_dim": 32, "num_heads": 2, "num_layers": 2, "dropout_rate": 0.0}
    net = {
        "patch_size": 16, "hidden_size": 16, "model_name": "vit-ti16", "transformer": transformer
    }  # fmt: skip
    return classifier({"type": "vit", "vit": net})


def bert() -> Case:
    networks, models = official("nlp.modeling.networks"), official("nlp.modeling.models")
    encoder = networks.BertEncoderV2(
        vocab_size=50, hidden_size=16, num_layers=2, num_attention_heads=2, inner_dim=32,
        max_sequence_length=16, output_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    model = models.BertPretrainerV2(encoder_network=encoder)
    return Case(model, {**words(), "masked_lm_positions": tf.constant([[1, 3, 5], [2, 4, 6]])})


def albert() -> Case:
    networks, models = official("nlp.modeling.networks"), official("nlp.modeling.models")
    encoder = networks.AlbertEncoder(
        vocab_size=50, embedding_width=8, hidden_size=16, num_layers=2, num_attention_heads=2,
        intermediate_size=32, max_sequence_length=16, dropout_rate=0.0,
        attention_dropout_rate=0.0, dict_outputs=True,
    )  # fmt: skip
    return Case(models.BertClassifier(encoder, num_classes=3, dropout_rate=0.0), words())


def mobilebert() -> Case:
    networks, models = official("nlp.modeling.networks"), official("nlp.modeling.models")
    encoder = networks.MobileBERTEncoder(
        word_vocab_size=50, word_embed_size=8, type_vocab_size=2, max_sequence_length=16,
        num_blocks=2, hidden_size=16, num_attention_heads=2, intermediate_size=32,
        intra_bottleneck_size=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return Case(models.BertClassifier(encoder, num_classes=3, dropout_rate=0.0), words())


def transformer() -> Case:
    models = official("nlp.modeling.models")
    seq2seq = importlib.import_module("official.nlp.modeling.models.seq2seq_transformer")
    stack = {
        "num_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0, "intermediate_dropout": 0.0,
    }  # fmt: skip
    model = models.Seq2SeqTransformer(
        vocab_size=50, embedding_width=16, dropout_rate=0.0, decode_max_length=8, beam_size=2,
        encoder_layer=seq2seq.TransformerEncoder(**stack),
        decoder_layer=seq2seq.TransformerDecoder(**stack),
    )  # fmt: skip
    return Case(model, {"inputs": tokens(), "targets": tokens(length=8)})


def retinanet() -> Case:
    factory, configs = official("vision.modeling.factory"), official("vision.configs.retinanet")
    config = configs.RetinaNet(num_classes=3, input_size=[96, 96, 3], min_level=3, max_level=5)
    config.override(
        {
            "backbone": {"type": "resnet", "resnet": {"model_id": 18, "depth_multiplier": 0.25}},
            "decoder": {"type": "fpn", "fpn": {"num_filters": 16}},
            "head": {"num_convs": 1, "num_filters": 16},
        }
    )
    specs = keras().layers.InputSpec(shape=[None, 96, 96, 3])
    model = factory.build_retinanet(specs, config)

    def call(model: Any, inputs: Any, training: bool) -> Any:
        features = model.decoder(model.backbone(inputs, training=training), training=training)
        return model.head(features, training=training)

    return Case(model, images(4, 96, 96, 3), call)


def segmentation() -> Case:
    factory = official("vision.modeling.factory")
    configs = official("vision.configs.semantic_segmentation")
    config = configs.SemanticSegmentationModel(num_classes=3, input_size=[96, 96, 3])
    net = {"model_id": 50, "output_stride": 16, "stem_type": "v1"}
    config.override(
        {
            "backbone": {"type": "dilated_resnet", "dilated_resnet": net},
            "decoder": {"type": "aspp", "aspp": {"level": 4, "num_filters": 8,
                                                 "dilation_rates": [2], "dropout_rate": 0.0}},
            "head": {"level": 4, "num_convs": 1, "num_filters": 8},
        }
    )  # fmt: skip
    specs = keras().layers.InputSpec(shape=[None, 96, 96, 3])
    return Case(factory.build_segmentation_model(specs, config), images(4, 96, 96, 3))


def video() -> Case:
    networks = official("vision.modeling.backbones")
    models = importlib.import_module("official.vision.modeling.video_classification_model")
    specs = keras().layers.InputSpec(shape=[None, 8, 64, 64, 3])
    backbone = networks.ResNet3D(
        model_id=50, temporal_strides=[1, 1, 1, 1], use_self_gating=[0, 0, 0, 0],
        temporal_kernel_sizes=[[3] * 3, [1] * 4, [1] * 6, [1] * 3], input_specs=specs,
    )  # fmt: skip
    model = models.VideoClassificationModel(
        backbone=backbone, num_classes=3, input_specs={"image": specs}, dropout_rate=0.0
    )
    return Case(model, {"image": images(4, 8, 64, 64, 3)})


def bert_span() -> Case:
    networks, models = official("nlp.modeling.networks"), official("nlp.modeling.models")
    encoder = networks.BertEncoder(
        vocab_size=50, hidden_size=16, num_layers=2, num_attention_heads=2, intermediate_size=32,
        max_sequence_length=16, dropout_rate=0.0, attention_dropout_rate=0.0, dict_outputs=True,
    )  # fmt: skip
    return Case(models.BertSpanLabeler(encoder), words())


def custom() -> Case:
    k = keras()
    layer_class: Any = k.layers.Layer
    model_class: Any = k.Model

    class Block(layer_class):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self._inner = k.layers.Dense(6, activation="relu")
            self.norm = k.layers.LayerNormalization()

        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(name="scale", shape=(6,), initializer="ones")
            super().build(shape)

        def call(self, x: Any) -> Any:
            return self.norm(self._inner(x) * self.scale)

    class Net(model_class):
        def __init__(self) -> None:
            super().__init__()
            self._attention = k.layers.MultiHeadAttention(num_heads=2, key_dim=3)
            self.blocks = [Block(), Block()]
            self.rnn = k.layers.Bidirectional(k.layers.GRU(3))
            self.heads = {"a": k.layers.Dense(2), "b": k.layers.Dense(2)}

        def call(self, x: Any) -> Any:
            x = self._attention(x, x)
            for block in self.blocks:
                x = block(x)
            return self.heads["a"](self.rnn(x)) - self.heads["b"](self.rnn(x))

    return Case(Net(), images(4, 5, 6))


_SGD = {"type": "sgd", "sgd": {"momentum": 0.9}}
_ADAM = {"type": "adam"}
_ADAMW = {"type": "adamw", "adamw": {"weight_decay_rate": 0.01, "gradient_clip_norm": 0.0}}
_RMSPROP = {"type": "rmsprop", "rmsprop": {"momentum": 0.9, "rho": 0.9}}
# The model, the optimizer, the learning rate and the decay of the weights' moving average.
CASES: dict[str, tuple[Callable[[], Case], dict[str, Any], float, float]] = {
    "resnet": (resnet, _SGD, 1e-2, 0.9),
    "bert": (bert, _ADAMW, 1e-3, 0.0),
    "mobilenet": (mobilenet, _RMSPROP, 1e-5, 0.0),
    "retinanet": (retinanet, _SGD, 1e-4, 0.0),
    "transformer": (transformer, _ADAM, 1e-3, 0.0),
    "custom": (custom, _ADAM, 1e-3, 0.0),
    "efficientnet": (efficientnet, _SGD, 3e-5, 0.0),
    "vit": (vit, _ADAM, 1e-3, 0.0),
    "albert": (albert, _ADAM, 1e-3, 0.0),
    "mobilebert": (mobilebert, _ADAM, 1e-3, 0.0),
    "segmentation": (segmentation, _SGD, 1e-4, 0.0),
    "video": (video, _SGD, 1e-5, 0.0),
    "bert_span": (bert_span, _ADAMW, 1e-4, 0.0),
}


class Run:
    """A model, its optimizer and the checkpoint of both."""

    def __init__(self, name: str) -> None:
        build, optimizer, rate, decay = CASES[name]
        self.case = build()
        self.outputs()
        opt = official("modeling.optimization")
        params: dict[str, Any] = {
            "optimizer": optimizer,
            "learning_rate": {"type": "constant", "constant": {"learning_rate": rate}},
        }
        if decay:
            params["ema"] = {"average_decay": decay}
        factory = opt.OptimizerFactory(opt.OptimizationConfig(params))
        self.optimizer = factory.build_optimizer(factory.build_learning_rate())
        if decay:
            self.optimizer.shadow_copy(self.case.model)
        self.step = tf.Variable(0, dtype=tf.int64)
        self.checkpoint = tf.train.Checkpoint(
            global_step=self.step, model=self.case.model, optimizer=self.optimizer
        )

    def outputs(self, training: bool = False) -> list[Any]:
        case = self.case
        call = case.call or (lambda model, inputs, training: model(inputs, training=training))
        outputs = tf.nest.flatten(call(case.model, case.inputs, training))
        return [tf.cast(each, tf.float32) for each in outputs if each.dtype.is_floating]

    def train(self, steps: int) -> list[float]:
        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                outputs = self.outputs(training=True)
                loss = tf.add_n([tf.reduce_mean(tf.square(each - 0.5)) for each in outputs])
            weights = self.case.model.trainable_variables
            pairs = zip(tape.gradient(loss, weights), weights, strict=True)
            self.optimizer.apply_gradients([(g, w) for g, w in pairs if g is not None])
            self.step.assign_add(1)
            return loss

        return [float(step()) for _ in range(steps)]

    def nudge(self) -> None:
        """Change each weight to the next larger or the next smaller float, at random."""
        for weight in self.case.model.trainable_variables:
            value = weight.numpy()
            target = np.where(rng().random(value.shape) < 0.5, -np.inf, np.inf)
            weight.assign(np.nextafter(value, target.astype(value.dtype)))


def write(folder: pathlib.Path, name: str) -> None:
    run = Run(name)
    run.train(FIRST_STEPS)
    path = str(folder / name / f"ckpt-{FIRST_STEPS}")
    run.checkpoint.write(path)
    outputs = [each.numpy() for each in run.outputs()]
    losses = run.train(STEPS)
    run.checkpoint.read(path)
    run.nudge()
    np.savez(folder / name / "outputs.npz", *outputs, losses=losses, nudged=run.train(STEPS))


def read(folder: pathlib.Path, name: str) -> dict[str, Any]:
    from official_lite.checkpoint import fallback
    from official_lite.modeling.optimization import ema_optimizer

    run = Run(name)
    optimizer = run.optimizer
    weights = [w for w in run.case.model.trainable_variables if w.dtype == "float32"]
    optimizer.build(weights)
    path = str(folder / name / f"ckpt-{FIRST_STEPS}")
    fallback.restore(run.checkpoint, path)
    saved = np.load(folder / name / "outputs.npz")
    found = [each.numpy() for each in run.outputs()]
    wanted = [saved[f"arr_{i}"] for i in range(len(saved.files) - 2)]
    average = ema_optimizer.get_moving_average(optimizer)
    inner = average.inner_optimizer if average else optimizer
    step = int(run.step)
    losses = np.array(run.train(STEPS))

    def distance(others: Any) -> float:
        return float((abs(others - saved["losses"]) / np.maximum(saved["losses"], 1)).max())

    return {
        "model": name,
        "weights": len(run.case.model.weights),
        "slots": len(inner.variables) - 2,
        "averages": len(average.averages) if average else 0,
        "step": step,
        "outputs": max(float(abs(a - b).max()) for a, b in zip(found, wanted, strict=True)),
        "losses": distance(losses),
        "losses of nudged weights": distance(saved["nudged"]),
        "first and last loss": [float(saved["losses"][0]), float(saved["losses"][-1])],
    }


def main() -> None:
    folder = pathlib.Path(sys.argv[2])
    for name in sys.argv[3:] or CASES:
        try:
            if sys.argv[1] == "write":
                write(folder, name)
                print(name, "written", flush=True)
            else:
                print(json.dumps(read(folder, name)), flush=True)
        except Exception:  # The other models must run even if one model fails.
            traceback.print_exc()
            print(name, "failed", flush=True)


if __name__ == "__main__":
    main()
