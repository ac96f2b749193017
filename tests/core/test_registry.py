from official_lite.common import registry as common_registry
from official_lite.core import registry


def test_the_model_garden_path_leads_to_the_one_registry():
    collection = {}
    registry.register(collection, "group/name")(dict)
    assert common_registry.lookup(collection, "group/name") is dict
    assert registry.lookup(collection, "group/name") is dict
    assert registry.names(collection) == ["group/name"]
