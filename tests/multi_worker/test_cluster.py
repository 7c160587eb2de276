"""Addresses of workers, and what TF_CONFIG says of them, by hand-made cases."""

import json

import pytest

from towers.multi_worker import cluster


def tf_config(jobs, kind="worker", index=0) -> str:
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:x", "a b:1", "::1:80",
     "host:1:2", "host:１", "grpc://host:1", "[::1]:1"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="is not host:port"):
        cluster.Cluster((address, "b:1"), 0)


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_of_no_worker_is_refused(index):
    with pytest.raises(ValueError, match=f"^index={index}: "):
        cluster.Cluster(("a:1", "b:1"), index)


def read(monkeypatch, text):
    """What a TF_CONFIG describes."""
    monkeypatch.setenv("TF_CONFIG", text)
    return cluster.from_tf_config()


@pytest.mark.parametrize(
    ("jobs", "kind", "index", "expected"),
    [
        ({"worker": ["a:1", "b:1", "c:1"]}, "worker", 2, 2),
        ({"worker": ["b:1", "c:1"], "chief": ["a:1"]}, "chief", 0, 0),
        ({"worker": ["b:1", "c:1"], "chief": ["a:1"]}, "worker", 1, 2),
    ],
)
def test_a_chief_comes_before_the_workers(jobs, kind, index, expected, monkeypatch):
    text = tf_config(jobs, kind, index)
    assert read(monkeypatch, text) == cluster.Cluster(("a:1", "b:1", "c:1"), expected)


@pytest.mark.parametrize(
    "text", ["", "{}", tf_config({"worker": ["a:1"]}), tf_config({"ps": ["a:1"]})]
)
def test_one_process_or_none_is_no_cluster(text, monkeypatch):
    assert read(monkeypatch, text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("{", "NaN", "null", '{"cluster": []}'),
        '{"cluster": {"worker": null}}',
        tf_config({"worker": ["a:1", "b:1"]}, index=2),
        tf_config({"worker": ["a:1", "b:1"]}, index=-1),
        tf_config({"worker": ["a:1", "b:1"]}, "evaluator"),
        tf_config({"worker": ["a:1", "b"]}),
        tf_config({"worker": ["a:1", 2]}),
        tf_config({"worker": {"1": "a:1", "3": "b:1"}}),
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": 3}',
        '{"cluster": {"worker": ["a:1", "b:1"]}}',
    ],
)
def test_a_tf_config_that_is_none_is_refused(text, monkeypatch):
    with pytest.raises(ValueError, match="^TF_CONFIG: ") as error:
        read(monkeypatch, text)
    assert len(str(error.value)) < 300
