import pytest

from official_lite.common import errors, plugins


def add(collection: plugins.Collection, *names: str) -> plugins.Collection:
    for name in names:
        plugins.register(collection, name)(lambda name=name: name)
    return collection


def test_a_name_is_a_path_through_groups():
    collection = add({}, "vision/digits/small", "vision/digits/large", "text")
    assert plugins.lookup(collection, "vision/digits/large")() == "vision/digits/large"
    assert plugins.names(collection) == ["text", "vision/digits/large", "vision/digits/small"]


def test_a_second_thing_of_the_same_name_is_refused():
    with pytest.raises(KeyError, match="'text' is already registered"):
        add({}, "text", "text")


def test_a_name_and_a_group_cannot_be_the_same():
    with pytest.raises(plugins.DuplicateNameError, match="'text' is already"):
        add({}, "text", "text/more")
    with pytest.raises(plugins.DuplicateNameError, match="as a group of names"):
        add({}, "text/more", "text")


def test_reloading_a_module_replaces_what_it_registered():
    collection: plugins.Collection = {}

    def load(version: int) -> type:
        cls = type("Thing", (), {"__module__": "some.module", "version": version})
        return plugins.register(collection, "thing")(cls)

    load(1)
    load(2)
    assert plugins.lookup(collection, "thing").version == 2


def test_an_unknown_name_is_answered_with_the_nearest_and_the_missing_import():
    collection = add({}, "vision/digits", "text/reviews")
    with pytest.raises(LookupError, match=r"`vision/digits`.*--import") as raised:
        plugins.lookup(collection, "vision/digist")
    assert raised.type is errors.UnknownNameError


def test_a_group_is_not_a_name():
    with pytest.raises(errors.UnknownNameError, match=r"group of names.*`vision/digits`"):
        plugins.lookup(add({}, "vision/digits"), "vision")


def test_a_path_that_goes_on_behind_a_name_is_unknown():
    with pytest.raises(errors.UnknownNameError, match="'vision/digits/more' is not registered"):
        plugins.lookup(add({}, "vision/digits"), "vision/digits/more")


def test_an_unknown_class_key_is_shown_by_its_name():
    class Config: ...

    with pytest.raises(errors.UnknownNameError, match=r"Config` is not registered"):
        plugins.lookup({}, Config)


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a/../b", "a\0b", "a\nb", "a\x1b[31m"])
def test_unsafe_names_are_refused(name):
    with pytest.raises(errors.ConfigValueError, match="not a valid name"):
        add({}, name)
