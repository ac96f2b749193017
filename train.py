"""Train or evaluate a registered experiment.

python train.py --experiment=vision/digits_cnn --mode=train_and_eval --model_dir=/tmp/digits
"""

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite.tools import train

if __name__ == "__main__":
    train.main()
