"""Addresses of workers, and what TF_CONFIG says of them, by hand-made cases."""

import json

import pytest

from towers.multi_worker import cluster
from towers_cli import launch


def tf_config(jobs, kind="worker", index=0) -> str:
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:x", "a b:1", "::1:80",
     "host:1:2", "host:１", "grpc://host:1", "[::1]:1"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="is not host:port"):
        cluster.check([address, "b:1"], 0)


def test_the_same_address_twice_is_refused():
    with pytest.raises(ValueError, match="a:1 is listed twice; give each worker its own"):
        cluster.check(["a:1", "b:1", "a:1"], 0)


@pytest.mark.parametrize("index", [None, -1, 2])
def test_an_index_of_no_worker_is_refused(index):
    with pytest.raises(
        ValueError, match=f"^worker_index={index}: must be at least 0 and below .* 2"
    ):
        cluster.check(["a:1", "b:1"], index)


def test_tf_config_of_workers():
    text = tf_config({"worker": ["a:1", "b:1", "c:1"]}, index=2)
    assert cluster.from_tf_config(text) == cluster.Cluster(("a:1", "b:1", "c:1"), 2)


@pytest.mark.parametrize(("kind", "index", "expected"), [("chief", 0, 0), ("worker", 1, 2)])
def test_a_chief_comes_before_the_workers(kind, index, expected):
    text = tf_config({"worker": ["b:1", "c:1"], "chief": ["a:1"]}, kind, index)
    assert cluster.from_tf_config(text) == cluster.Cluster(("a:1", "b:1", "c:1"), expected)


@pytest.mark.parametrize("text", ["{}", tf_config({"worker": ["a:1"]}), tf_config({"ps": ["a:1"]})])
def test_one_process_or_none_is_no_cluster(text):
    assert cluster.from_tf_config(text) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"a": ' * 100_000, "is nested too deeply"),
        ("1" * 5000, "is not JSON"),
        ("NaN", "must have the form"),
        ("null", "must have the form"),
        ('{"cluster": {"worker": null}}', "must be a list"),
        (tf_config({"worker": ["a:1", "b:1"]}, index=10**4000), "its index must be below 2"),
        (tf_config({"worker": ["a:1", "b:1"]}, index=float("nan")), "its index must be below 2"),
        ("[]", "must have the form"),
        ('{"cluster": []}', "must have the form"),
        (tf_config({"worker": "a:1"}), "must be a list"),
        (tf_config({"worker": [1, 2]}), "must be a list"),
        (tf_config({"worker": ["a:1", "b:1"]}, "evaluator"), "its type must be"),
        (tf_config({"worker": ["a:1", "b:1"]}, index=2), "its index must be below 2"),
        (tf_config({"worker": ["a:1", "b:1"]}, index="0"), "its index must be below 2"),
        (tf_config({"worker": ["a:1", "b:1"]}, index=True), "its index must be below 2"),
        (tf_config({"worker": ["a:1", "b:1"]}, "chief"), "its index must be below 0"),
        (tf_config({"worker": ["a:1", "b"]}), "'b' is not host:port"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": 3}', "its type must be"),
    ],
)
def test_a_tf_config_that_is_none_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem) as error:
        cluster.from_tf_config(text)
    assert len(str(error.value)) < 300 and str(error.value).isprintable()


def test_tf_config_is_read_back():
    members = cluster.Cluster(("a:1", "b:1"), 1)
    assert cluster.from_tf_config(launch.tf_config(members.addresses, members.index)) == members
