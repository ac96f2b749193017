"""Hand-written eager PyTorch.

python -m benchmarks.steps.torch_worker --model=tiny_mlp
"""

import torch

from benchmarks.steps import torch_models, worker


def main() -> None:
    args = worker.parse_args()
    model = args.model
    built = torch_models.build(model)
    optimizer = torch_models.create_optimizer(model, built)
    features, labels = torch_models.load_batches(model)
    start = 0

    def train_steps(num_steps: int) -> dict[str, float]:
        nonlocal start
        score = torch_models.Score(model)
        total = torch.zeros(())
        for index in range(start, start + num_steps):
            index %= len(labels)
            optimizer.zero_grad()
            logits = built(*(part[index] for part in features))
            loss = torch_models.mean_loss(model, logits, labels[index])
            loss.backward()
            optimizer.step()
            total += loss.detach()
            score.update(logits, labels[index])
        start += num_steps
        return {"loss": float(total) / num_steps, "metric": score.result()}

    worker.run_rounds(args, train_steps)


if __name__ == "__main__":
    main()
