"""tests/conftest.py lists files and folders by their names, which somebody may change."""

from tests.conftest import HERE, SLOW


def test_slow_files_and_folders_exist() -> None:
    """The tests of a name that is gone would run in `make test-fast`."""
    assert [name for name in SLOW if not (HERE / name).exists()] == []
