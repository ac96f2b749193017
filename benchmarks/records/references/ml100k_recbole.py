"""RecBole's own training on MovieLens-100k, with its default protocol.

It prints one line of JSON per evaluation: the seconds since the process began and the metrics.
These are of the validation split after each epoch, and of the test split, named `test_…`, at the
end.

~/.cache/official_lite/environments/recbole/bin/python ml100k_recbole.py --data_dir=ml-100k
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import psutil

# RecBole restores the best checkpoint, which contains its pickled config.
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"

from recbole import config, data, utils


def _print(metrics: Mapping[str, float], prefix: str = "") -> None:
    seconds = round(time.time() - psutil.Process().create_time(), 2)
    named = {prefix + name.partition("@")[0]: float(value) for name, value in metrics.items()}
    print(json.dumps({"seconds": seconds, **named}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", required=True, help="The directory of `ml-100k.inter`.")
    parser.add_argument("--model", default="BPR", choices=["BPR", "SASRec"])
    parser.add_argument("--seed", type=int, default=2020)
    parser.add_argument("--max_epochs", type=int, default=300)
    args = parser.parse_args()
    data_dir = os.path.abspath(args.data_dir)
    # RecBole also reads the command line, and must not see the arguments of this program.
    sys.argv = sys.argv[:1]
    # RecBole writes checkpoints and logs to the working directory.
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        _train(args.model, data_dir, args.seed, args.max_epochs)


def _train(model_name: str, data_dir: str, seed: int, max_epochs: int) -> None:
    settings: dict[str, Any] = {
        "epochs": max_epochs,
        "seed": seed,
        "use_gpu": False,
        "show_progress": False,
    }
    if model_name == "SASRec":
        # Disable negative sampling, which RecBole rejects for a loss over all items.
        settings["train_neg_sample_args"] = None
    params = config.Config(model=model_name, dataset="ml-100k", config_dict=settings)
    # For this dataset, RecBole sets the path to its own copy of the files.
    params["data_path"] = data_dir
    utils.init_seed(params["seed"], params["reproducibility"])
    train, valid, test = data.data_preparation(params, data.create_dataset(params))
    utils.init_seed(params["seed"], params["reproducibility"])
    model = utils.get_model(params["model"])(params, train._dataset).to(params["device"])
    trainer = utils.get_trainer(params["MODEL_TYPE"], params["model"])(params, model)
    evaluate = trainer.evaluate

    def evaluate_and_print(*args: Any, **kwargs: Any) -> Mapping[str, float]:
        metrics = evaluate(*args, **kwargs)
        _print(metrics)
        return metrics

    trainer.evaluate = evaluate_and_print
    trainer.fit(train, valid, saved=True, show_progress=False, verbose=False)
    _print(evaluate(test, load_best_model=True, show_progress=False), "test_")


if __name__ == "__main__":
    main()
