"""Turns a project for the Model Garden and Keras 2 into one on `official_lite` and Keras 3.

::

    port = porting.port_project(["my_project"], alongside="model_garden")
    print(port.diff())
    port.write()

What can be told from the text alone is rewritten, with formatting and comments left as they are;
what it takes a human for is listed, with file and line. Needs `libcst`.
"""

from official_lite.porting.project import Port, PortedFile, port_project
from official_lite.porting.remaining import Remaining

__all__ = ["Port", "PortedFile", "Remaining", "port_project"]
