import pytest

pytest.register_assert_rewrite("tests.storage.kv.conformance")
