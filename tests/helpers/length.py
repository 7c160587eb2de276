"""Whether the long tests run, too, as in `make test-all`; conftest.py says so."""

all_tests = False


def examples(count: int) -> int:
    """How many examples a property draws: so many, or a third where the long tests are left out."""
    return count if all_tests else max(5, count // 3)
