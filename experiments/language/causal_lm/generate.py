"""Continue a text with the model of a run.

python -m experiments.language.causal_lm.generate --model_dir=/tmp/char_gpt --prompt='ROMEO:'
"""

import argparse
from collections.abc import Sequence

import keras
import tensorflow as tf

import official_lite
from official_lite.common import errors

__all__ = ["generate", "main"]


def generate(
    model: keras.Model,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
) -> list[int]:
    """Generate tokens that continue a prompt, drawn from the model's probabilities.

    Args:
        model: A model from tokens of shape (batch, seq_length) to logits.
        prompt: At least one token; the model sees the last `seq_length` of them.
        num_tokens: The number of tokens to draw.
        temperature: The number by which logits are divided. Values below 1 favor probable tokens,
            and 0 always takes the most probable one.
        top_k: Draw only from this number of most probable tokens; 0 draws from all.
        seed: The seed of the draws.
    """
    if not len(prompt):
        raise errors.ConfigValueError("The prompt is empty. Expected at least one token.")
    length = model.input_shape[1]

    @tf.function(reduce_retracing=True)
    def draw(window: tf.Tensor, last: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        logits = tf.cast(model(window[tf.newaxis], training=False)[0, last], tf.float32)
        if not temperature:
            return tf.argmax(logits, output_type=tf.int32)
        if top_k:
            least = tf.math.top_k(logits, min(top_k, logits.shape[-1])).values[-1]
            logits = tf.where(logits >= least, logits, -1e9)
        seeds = tf.stack([tf.constant(seed), number])
        drawn = tf.random.stateless_categorical(logits[tf.newaxis] / temperature, 1, seeds)
        return tf.cast(drawn[0, 0], tf.int32)

    tokens = [int(token) for token in prompt]
    for number in range(num_tokens):
        seen = tokens[-length:]
        # The padding has no effect, because the model ignores all positions after the last token.
        window = tf.constant(seen + [0] * (length - len(seen)), tf.int32)
        tokens.append(int(draw(window, tf.constant(len(seen) - 1), tf.constant(number))))
    return tokens[len(prompt) :]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        arguments: Arguments that replace those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model_dir", required=True, help="The model directory of the run.")
    parser.add_argument(
        "--experiment", default="", help="The experiment, if the run's record lacks it."
    )
    parser.add_argument("--prompt", default="\n", help="The text to continue.")
    parser.add_argument("--tokens", type=int, default=500, help="The number of tokens to generate.")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top_k", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    run = official_lite.load_run(args.model_dir, experiment=args.experiment)
    tokens = generate(
        run.model,
        run.task.encode(args.prompt),
        args.tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        seed=args.seed,
    )
    print(args.prompt + run.task.decode(tokens))


if __name__ == "__main__":
    main()
