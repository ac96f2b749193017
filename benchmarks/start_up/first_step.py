"""A hook that ends the process after the first step."""

import os

from official_lite import orbit

__all__ = ["EndAtFirstStep"]


class EndAtFirstStep(orbit.Hook):
    """A hook that ends the process after its first step, without the time of a shutdown."""

    def after_step(self) -> None:
        print("first step", flush=True)
        os._exit(0)
