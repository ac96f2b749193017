import pytest

from official_lite.porting.destinations import Destinations, has_name


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("official_lite.core.base_task", True),
        ("official_lite.core.base_task.Task", True),
        ("official_lite.modeling.optimization.OptimizationConfig", True),
        ("official_lite.modeling.optimization.NoSuchConfig", False),
        ("official_lite.vision.configs", False),
    ],
)
def test_modules_and_names_of_packages_are_known(name: str, there: bool) -> None:
    assert has_name(name) is there


def test_what_is_brought_along_is_found_there() -> None:
    destinations = Destinations("garden", frozenset({"official.vision.ops.box_ops"}))
    assert destinations.translate("official.vision.ops.box_ops.f") == "garden.vision.ops.box_ops.f"
    assert destinations.translate("official.core.base_task") == "official_lite.core.base_task"
    assert destinations.translate("official.nlp.data") is None
