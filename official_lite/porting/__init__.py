"""Porting of projects from the Model Garden and Keras 2 to `official_lite` and Keras 3.

::

    port = porting.port_project(["my_project"], alongside="model_garden")
    print(port.diff())
    port.write()

Everything that can be decided from the source text is rewritten, preserving formatting and
comments. Everything that requires a human is listed with its file and line. Requires `libcst`.
"""

from official_lite.porting.manual_todos import Remaining as Remaining
from official_lite.porting.project import (
    Port as Port,
    PortedFile as PortedFile,
    port_project as port_project,
)
