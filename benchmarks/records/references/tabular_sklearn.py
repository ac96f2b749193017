"""Gradient boosting and a multilayer perceptron of scikit-learn on the tables of `tabular/`.

python benchmarks/records/references/tabular_sklearn.py --table=breast_cancer --fold=0
python benchmarks/records/references/tabular_sklearn.py --table=fair --data_dir=/tmp --fold=0

Both models are trained on the training and the validation rows of the experiments. Each line of
output is the evaluation of one model on the test rows.
"""

import time

_BEGIN = time.perf_counter()

import argparse
import csv
import json
import pathlib
from typing import Any

import numpy as np
from sklearn import (
    compose,
    datasets,
    ensemble,
    metrics,
    neural_network,
    pipeline,
    preprocessing,
)

NUM_FOLDS = 5
CATEGORICAL = {"breast_cancer": [], "fair": ["occupation", "occupation_husb"]}
TARGETS = {"fair": "affair"}


def load(table: str, data_dir: pathlib.Path) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return features, labels, and the indices of the categorical columns."""
    if table == "breast_cancer":
        cancer = datasets.load_breast_cancer()
        # The experiment numbers the classes in the order of their names, so benign is 0.
        return cancer.data, 1 - cancer.target, []
    with (data_dir / f"{table}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name != TARGETS[table]]
    features = np.array([[float(row[name]) for name in names] for row in rows])
    labels = np.unique([row[TARGETS[table]] for row in rows], return_inverse=True)[1]
    return features, labels, [names.index(name) for name in CATEGORICAL[table]]


def build_models(categorical: list[int], seed: int, max_epochs: int) -> dict[str, Any]:
    """Return both models with scikit-learn's defaults, but early stopping for the perceptron."""
    one_hot = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = compose.ColumnTransformer(
        [("categories", one_hot, categorical)], remainder=preprocessing.StandardScaler()
    )
    perceptron = neural_network.MLPClassifier(
        max_iter=max_epochs, early_stopping=True, random_state=seed
    )
    return {
        "boosting": ensemble.HistGradientBoostingClassifier(
            categorical_features=categorical or None, random_state=seed
        ),
        "mlp": pipeline.make_pipeline(columns, perceptron),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", choices=sorted(CATEGORICAL), default="breast_cancer")
    parser.add_argument("--data_dir", type=pathlib.Path, default=pathlib.Path())
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max_epochs", type=int, default=1000)
    args = parser.parse_args()
    features, labels, categorical = load(args.table, args.data_dir)
    # Use the same folds as `split_rows` in experiments/tabular/data.py.
    order = np.random.default_rng(0).permutation(len(labels))
    is_test = np.arange(len(labels)) % NUM_FOLDS == args.fold
    train, test = order[~is_test], order[is_test]
    for name, model in build_models(categorical, args.seed, args.max_epochs).items():
        model.fit(features[train], labels[train])
        probabilities = model.predict_proba(features[test])
        values = {
            f"{name}_accuracy": metrics.accuracy_score(labels[test], probabilities.argmax(-1)),
            f"{name}_auc": metrics.roc_auc_score(labels[test], probabilities[:, 1]),
            f"{name}_loss": metrics.log_loss(labels[test], probabilities),
        }
        print(json.dumps({"seconds": time.perf_counter() - _BEGIN, **values}), flush=True)


if __name__ == "__main__":
    main()
