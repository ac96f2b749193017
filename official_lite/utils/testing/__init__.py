"""What the tests of a project may train in the place of the real thing.

::

    from official_lite.utils.testing import mock_task  # registers the experiment `mock`
"""
