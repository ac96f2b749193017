"""Write the default data set of MNIST-1D to `mnist1d.npz`, without a download.

pip install mnist1d
python -m experiments.sequence.mnist1d.write_data /tmp/mnist1d_data
"""

import argparse
import pathlib

import numpy as np

__all__ = ["write"]

# The name is a copy of `data.FILE`, because importing `data` would import TensorFlow.
_FILE = "mnist1d.npz"


def write(directory: pathlib.Path) -> pathlib.Path:
    """Generate the data set with its default arguments, and return the path of the file."""
    from mnist1d.data import make_dataset

    dataset = make_dataset()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / _FILE
    np.savez(path, **{name: dataset[name] for name in ("x", "y", "x_test", "y_test")})
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    print(write(parser.parse_args().directory.expanduser()))


if __name__ == "__main__":
    main()
