"""Hand-written JAX: a jitted step, or many steps in a `lax.scan`.

python -m benchmarks.steps.jax_worker --model=tiny_mlp --execution=scan
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.steps import models, worker

Weights = dict[str, jax.Array]
State = dict[str, Any]


def mlp(w: Weights, x: jax.Array) -> jax.Array:
    return dense(w, "logits", jax.nn.relu(dense(w, "hidden", x)))


def convnet(w: Weights, x: jax.Array) -> jax.Array:
    for index in range(len(models.CONVNET_FILTERS)):
        strides = (1, 1) if index == 0 else (2, 2)
        x = jax.lax.conv_general_dilated(
            x,
            w[f"conv_{index}/kernel"],
            strides,
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = jax.nn.relu(x + w[f"conv_{index}/bias"])
    return dense(w, "logits", x.mean((1, 2)))


def transformer(w: Weights, tokens: jax.Array) -> jax.Array:
    x = w["tokens/embeddings"][tokens] + w["positions/embeddings"]
    for index in range(models.NUM_BLOCKS):
        block = f"block_{index}"
        attended = attention(dense(w, f"{block}_qkv", layer_norm(w, f"{block}_norm_1", x)))
        x += dense(w, f"{block}_project", attended)
        hidden = jax.nn.relu(dense(w, f"{block}_up", layer_norm(w, f"{block}_norm_2", x)))
        x += dense(w, f"{block}_down", hidden)
    return dense(w, "logits", layer_norm(w, "norm", x))


def ctr(w: Weights, x: jax.Array, categorical: jax.Array) -> jax.Array:
    embedded = [
        w[f"table_{index}/embeddings"][categorical[:, index]] for index in range(models.NUM_TABLES)
    ]
    x = jnp.concatenate([x, *embedded], -1)
    for index in range(len(models.CTR_UNITS)):
        x = jax.nn.relu(dense(w, f"dense_{index}", x))
    return dense(w, "logits", x)[:, 0]


def dense(w: Weights, name: str, x: jax.Array) -> jax.Array:
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def layer_norm(w: Weights, name: str, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    normal = (x - mean) * jax.lax.rsqrt(variance + models.LAYER_NORM_EPSILON)
    return normal * w[f"{name}/gamma"] + w[f"{name}/beta"]


def attention(qkv: jax.Array) -> jax.Array:
    batch, length, size = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    d_head = size // models.NUM_HEADS
    heads = qkv.reshape(batch, length, 3, models.NUM_HEADS, d_head).transpose(2, 0, 3, 1, 4)
    query, key, value = heads
    scores = query @ key.swapaxes(-1, -2) * d_head**-0.5
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    return (weights @ value).transpose(0, 2, 1, 3).reshape(batch, length, size)


FORWARD: dict[str, Callable[..., jax.Array]] = {
    "tiny_mlp": mlp,
    "convnet": convnet,
    "transformer": transformer,
    "ctr": ctr,
}


def create_state(model: models.Model) -> State:
    weights = {path: jnp.asarray(value) for path, value in model.make_parameters().items()}
    if model.optimizer == "adagrad":
        fill = functools.partial(jnp.full_like, fill_value=models.INITIAL_ACCUMULATOR)
        slots: Any = {"square": jax.tree.map(fill, weights)}
    else:
        slots = {
            "mean": jax.tree.map(jnp.zeros_like, weights),
            "square": jax.tree.map(jnp.zeros_like, weights),
        }
    return {"weights": weights, "slots": slots, "updates": jnp.zeros(()), **no_scores(model)}


def no_scores(model: models.Model) -> State:
    bins = models.NUM_BINS if model.metric == "auc" else 1
    return {"loss": jnp.zeros(()), "scores": jnp.zeros((2, bins))}


def create_step(model: models.Model) -> Callable[[State, Any, Any], State]:
    """Return a function from state and batch to the next state."""
    forward = FORWARD[model.name]
    is_auc = model.metric == "auc"
    update = update_adagrad if model.optimizer == "adagrad" else update_adamw

    def loss_fn(weights: Weights, features: Any, labels: Any) -> tuple[jax.Array, jax.Array]:
        logits = forward(weights, *features)
        if is_auc:
            # log(1 + exp(-x)) for a positive example, log(1 + exp(x)) for a negative one.
            return jnp.mean(jax.nn.softplus(logits) - labels * logits), logits
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
        return -jnp.mean(chosen), logits

    def score(labels: Any, logits: jax.Array) -> jax.Array:
        if is_auc:
            bins = (jax.nn.sigmoid(logits) * (models.NUM_BINS - 1e-3)).astype(jnp.int32)
            empty = jnp.zeros(models.NUM_BINS)
            return jnp.stack([empty.at[bins].add(labels), empty.at[bins].add(1 - labels)])
        hits = (jnp.argmax(logits, -1) == labels).astype(jnp.float32)
        return jnp.stack([hits.sum(), (1 - hits).sum()])[:, None]

    def step(state: State, features: Any, labels: Any) -> State:
        (loss, logits), gradients = jax.value_and_grad(loss_fn, has_aux=True)(
            state["weights"], features, labels
        )
        weights, slots = update(state["weights"], state["slots"], gradients, state["updates"] + 1)
        return {
            "weights": weights,
            "slots": slots,
            "updates": state["updates"] + 1,
            "loss": state["loss"] + loss,
            "scores": state["scores"] + score(labels, logits),
        }

    return step


def update_adamw(weights: Weights, slots: Any, gradients: Any, updates: Any) -> tuple[Any, Any]:
    mean = jax.tree.map(lambda m, g: m + (g - m) * 0.1, slots["mean"], gradients)
    square = jax.tree.map(lambda v, g: v + (g * g - v) * 0.001, slots["square"], gradients)
    rate = models.LEARNING_RATE * jnp.sqrt(1 - 0.999**updates) / (1 - 0.9**updates)
    decay = 1 - models.LEARNING_RATE * models.WEIGHT_DECAY
    updated = jax.tree.map(
        lambda w, m, v: w * decay - rate * m / (jnp.sqrt(v) + models.EPSILON),
        weights,
        mean,
        square,
    )
    return updated, {"mean": mean, "square": square}


def update_adagrad(weights: Weights, slots: Any, gradients: Any, _: Any) -> tuple[Any, Any]:
    square = jax.tree.map(lambda v, g: v + g * g, slots["square"], gradients)
    updated = jax.tree.map(
        lambda w, v, g: w - models.LEARNING_RATE * g / jnp.sqrt(v + models.EPSILON),
        weights,
        square,
        gradients,
    )
    return updated, {"square": square}


def create_train_fn(model: models.Model, execution: str) -> Callable[[State, int, int], State]:
    """Return a function from state, first step and number of steps to the state after them."""
    batches = jax.tree.map(jnp.asarray, model.make_batches())
    count = len(batches[1])
    step = create_step(model)

    def step_at(state: State, index: Any, batches: Any) -> State:
        return step(state, *jax.tree.map(lambda part: part[index % count], batches))

    @functools.partial(jax.jit, donate_argnums=0, static_argnums=2)
    def scan(state: State, start: Any, num_steps: int, batches: Any) -> State:
        def body(state: State, index: Any) -> tuple[State, None]:
            return step_at(state, index, batches), None

        return jax.lax.scan(body, state, start + jnp.arange(num_steps))[0]

    one_step = jax.jit(step_at, donate_argnums=0)

    def train(state: State, start: int, num_steps: int) -> State:
        if execution == "scan":
            return scan(state, start, num_steps, batches)
        for index in range(start, start + num_steps):
            state = one_step(state, index, batches)
        return state

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--execution", choices=["scan", "step"], default="scan")
    args = worker.parse_args(parser)
    model = args.model
    state = create_state(model)
    train = create_train_fn(model, args.execution)
    start = 0

    def train_steps(num_steps: int) -> dict[str, float]:
        nonlocal state, start
        state = train(state, start, num_steps)
        start += num_steps
        loss = float(state["loss"]) / num_steps
        first, second = np.asarray(state["scores"])
        state |= no_scores(model)
        is_auc = model.metric == "auc"
        metric = models.auc(first, second) if is_auc else float(first[0] / (first + second)[0])
        return {"loss": loss, "metric": metric}

    worker.run_rounds(args, train_steps)


if __name__ == "__main__":
    main()
