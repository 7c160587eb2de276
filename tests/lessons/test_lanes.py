"""The profile of a run as lanes: by hand, and of a run that was profiled."""

import json
import re

import pytest

from benchmarks import profiles
from laboratory import timeline
from lessons import lanes

OPERATIONS = [
    profiles.Operation("split_batch/strided_slice", "StridedSlice", 5.0, 0.5),
    profiles.Operation("tower_1/microbatch/conv1/Conv2D", "Conv2D", 7.0, 2.0),
    profiles.Operation("tower_0/microbatch/conv1/Conv2D", "Conv2D", 6.0, 3.0),
    profiles.Operation("tower_0/gradient_tape/conv1/x", "Conv2DBackpropInput", 9.0, 4.0),
    profiles.Operation("tower_0/microbatch/add", "AddV2", 9.0, 0.001),  # too short to be seen
    profiles.Operation("average_gradients/add", "AddV2", 13.0, 0.5),
    profiles.Operation("average_gradients/add/_3", "_Recv", 2.0, 11.0),  # waits
    profiles.Operation("count/AssignAddVariableOp", "AssignAddVariableOp", 13.4, 0.01),
    profiles.Operation("count/AssignAddVariableOp_1", "AssignAddVariableOp", 13.45, 0.01),
    profiles.Operation("apply/sgd/Mul", "Mul", 13.5, 0.5),
    profiles.Operation("count/AssignAddVariableOp", "AssignAddVariableOp", 24.0, 0.01),
]


def test_each_operation_is_in_the_lane_of_its_tower():
    found = lanes.played(OPERATIONS, "a machine")
    assert found["lanes"] == ["tower 0", "tower 1", "the rest"]
    (run,) = found["runs"].values()
    assert run["work"] == [
        (2, 0.0, 0.5, "other", "StridedSlice"),
        (0, 1.0, 4.0, "forward", "Conv2D"),
        (1, 2.0, 4.0, "forward", "Conv2D"),
        (0, 4.0, 8.0, "backward", "Conv2DBackpropInput"),
        (2, 8.0, 8.5, "average", "AddV2"),
        (2, 8.5, 9.0, "update", "Mul"),
    ]
    assert run["updates"] == [9.0, 19.0]  # the second step has no more than its counter here
    assert found["until"] == 9.0
    assert set(found["shades"]) >= {kind for *_, kind, _ in run["work"]}


def test_the_profile_of_the_site_is_of_two_whole_steps():
    found = json.loads(lanes.SITE.read_text("utf-8"))
    assert set(found) == set(lanes.played(OPERATIONS, ""))
    assert found["lanes"] == ["tower 0", "tower 1", "the rest"]
    (run,) = found["runs"].values()
    assert len(run["updates"]) == 1 + lanes.STEPS[1] - lanes.STEPS[0]
    kinds = {(lane, kind) for lane, _, _, kind, _ in run["work"]}
    assert {(0, "forward"), (0, "backward"), (1, "forward"), (1, "backward")} <= kinds
    assert {(2, "average"), (2, "update"), (2, "averages")} <= kinds


def test_a_folder_without_a_profile_is_named_with_what_to_do(tmp_path, capsys):
    assert lanes.main([str(tmp_path), f"--out={tmp_path / 'page.html'}"]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path) in error and "--profile_steps" in error
    assert not (tmp_path / "page.html").exists()


def test_the_newest_profile_of_a_run_becomes_a_page(tmp_path, monkeypatch, capsys):
    for moment in ("2026_11_26_01", "2026_11_26_02"):
        folder = tmp_path / "run/train/plugins/profile" / moment
        folder.mkdir(parents=True)
        (folder / "host.xplane.pb").write_bytes(b"")
    seen = []
    monkeypatch.setattr(profiles, "operations", lambda folder: seen.append(folder) or OPERATIONS)
    page = tmp_path / "page.html"
    assert lanes.main([str(tmp_path / "run"), f"--out={page}"]) == 0
    assert [folder.name for folder in seen] == ["2026_11_26_02"]
    assert capsys.readouterr().out.split() == [str(page)]
    data = json.loads(re.search(r"const DATA = (.+);\n", page.read_text("utf-8"))[1])
    assert data == json.loads(json.dumps(lanes.played(OPERATIONS, data["conditions"])))
    assert timeline.PLACE not in page.read_text("utf-8")


def test_a_profile_without_operations_is_refused(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "train/plugins/profile/now"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes(b"")
    assert lanes.main([str(tmp_path), f"--out={tmp_path / 'page.html'}"]) == 1
    assert "the profile has no operations of a step" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["a_run", "--site"]])
def test_a_run_or_the_site_is_asked_for(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        lanes.main(arguments)
    assert ended.value.code == 2
    capsys.readouterr()
