"""What holds of every lesson's finding."""

from pathlib import Path

from laboratory import findings


def check_finding(finding: findings.Finding, folder: Path) -> None:
    """A table whose rows are as long as its head, a claim, and a plot that can be drawn."""
    lines = finding.table().splitlines()
    assert len(lines) == len(finding.rows) + 2
    assert {line.count("|") for line in lines} == {len(finding.head) + 1}
    assert len(finding.claim) > 100
    findings.save(finding, folder / "plot.png")
    assert (folder / "plot.png").stat().st_size > 10_000
