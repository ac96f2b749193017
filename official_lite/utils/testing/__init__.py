"""Small replacements for real tasks, for use in a project's tests.

::

    from official_lite.utils.testing import mock_task  # registers the experiment `mock`
"""
