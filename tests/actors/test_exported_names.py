import actors


def test_exported_names_are_sorted_and_there() -> None:
    assert actors.__all__ == sorted(actors.__all__)
    assert all(hasattr(actors, name) for name in actors.__all__)
