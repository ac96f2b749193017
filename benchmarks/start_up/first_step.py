"""A hook that ends the process with the first step."""

import os

from official_lite import orbit

__all__ = ["EndAtFirstStep"]


class EndAtFirstStep(orbit.Hook):
    """Ends it at once, so that the end of a process takes no part in the time."""

    def after_step(self) -> None:
        print("first step", flush=True)
        os._exit(0)
