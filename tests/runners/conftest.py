"""These tests compare the frameworks, so they need both."""

import pytest

pytest.importorskip("jax")
pytest.importorskip("torch")
