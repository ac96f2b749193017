"""Virtual environments of the compared frameworks, each created when it is first needed.

python -m benchmarks.environments --env_dir=/tmp/environments torch jax
"""

import argparse
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

ENV_DIR = pathlib.Path(os.environ.get("BENCHMARK_ENV_DIR", "~/.cache/official_lite/environments"))

# Everything that runs on TensorFlow and Keras 3 shares one interpreter, and thus one build of both.
OWN = "tensorflow"

REQUIREMENTS: Mapping[str, tuple[str, ...]] = {
    OWN: (),
    # The image libraries must have matching versions; scikit-learn provides the digits.
    "tfm": ("tf-models-official==2.20.0", "tensorflow==2.20.*", "scikit-learn>=1.5"),
    # The same Keras version as in `OWN`, but on the JAX backend.
    "jax": ("jax==0.10.2", "keras==3.15.1"),
    "torch": ("torch==2.13.0", "lightning==2.6.6", "protobuf>=5"),
    # RecBole uses `np.float`, which NumPy 1.24 removed. The other versions match NumPy 1.23.
    "recbole": (
        "recbole==1.2.1",
        "torch==2.13.0",
        "numpy==1.23.5",
        "pandas==2.2.3",
        "scipy==1.13.1",
        "scikit-learn==1.5.2",
        # Later versions lack `pkg_resources`.
        "setuptools<81",
    ),
    "grain": ("grain==0.2.18", "protobuf>=5"),
}

_DONE = "requirements.txt"


def find_python(
    name: str, *, env_dir: pathlib.Path = ENV_DIR, pythons: Mapping[str, str] | None = None
) -> str:
    """Return the interpreter of an environment, which is created or updated if necessary.

    Args:
        name: One of `REQUIREMENTS`.
        env_dir: The directory of the environments.
        pythons: Existing interpreters to use unchanged, by the name of the environment.

    Raises:
        subprocess.CalledProcessError: If pip fails.
    """
    if pythons and name in pythons:
        return pythons[name]
    if not REQUIREMENTS[name]:
        return sys.executable
    directory = env_dir.expanduser() / name
    python = directory / "bin" / "python"
    wanted = "\n".join(REQUIREMENTS[name]) + "\n"
    done = directory / _DONE
    if done.exists() and done.read_text() == wanted:
        return str(python)
    print(f"Installing {', '.join(REQUIREMENTS[name])} in {directory}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[name]],
        check=True,
    )
    # Write this file last, so that an interrupted installation is repeated.
    done.write_text(wanted)
    return str(python)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--env_dir` and `--python`."""
    parser.add_argument("--env_dir", type=pathlib.Path, default=ENV_DIR)
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        type=lambda text: tuple(text.split("=", 1)),
        metavar="NAME=PATH",
        help="An interpreter to use for an environment, such as tfm=/venvs/tfm/bin/python.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(REQUIREMENTS))
    add_arguments(parser)
    args = parser.parse_args()
    for name in args.names:
        python = find_python(name, env_dir=args.env_dir, pythons=dict(args.python))
        print(f"{name:12} {python}")


if __name__ == "__main__":
    main()
