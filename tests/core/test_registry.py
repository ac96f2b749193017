from official_lite.common import plugins
from official_lite.core import registry


def test_the_model_garden_path_leads_to_the_one_registry():
    collection = {}
    registry.register(collection, "group/name")(dict)
    assert plugins.lookup(collection, "group/name") is dict
    assert registry.lookup(collection, "group/name") is dict
    assert registry.names(collection) == ["group/name"]
