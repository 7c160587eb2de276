"""The lesson on elastic averaging: the centre, the spring, and where it is too strong."""

import statistics

import lesson_checks
import numpy as np
import pytest

from lessons import elastic_averaging

LESSON = elastic_averaging.LESSON


@pytest.mark.long
def test_is_a_table_a_claim_and_a_plot(glance, tmp_path):
    lesson_checks.check_finding(glance, tmp_path)


@pytest.mark.long
def test_the_centre_is_better_than_every_worker(finding, numbers):
    papers = numbers["sprung"][1]
    assert papers.centre > max(papers.workers) + 0.03
    assert f"the centre was right on {papers.centre:.1%} of the test images, the 4 workers" in (
        finding.claim
    )
    assert finding.answer.startswith("No worker's own model: ")
    assert set(numbers["periods"]) == {1, 8}
    assert numbers["periods"][8] == papers


class TestAnswer:
    """It is computed, and can come out each way."""

    @staticmethod
    def of(centres, means, workers=0.3):
        return [
            elastic_averaging.Sprung(centre, [workers, workers], mean, 1.0)
            for centre, mean in zip(centres, means, strict=True)
        ]

    def test_a_model_is_better_where_every_seed_says_so(self):
        compare = elastic_averaging.centre_against_mean
        assert compare(self.of((0.5, 0.6), (0.4, 0.5))) == 1
        assert compare(self.of((0.4, 0.5), (0.5, 0.6))) == -1
        assert compare(self.of((0.4, 0.6), (0.5, 0.5))) == 0

    @pytest.mark.parametrize(
        ("centre", "mean", "says"),
        [
            (0.6, 0.5, "keep the centre, which is also better"),
            (0.5, 0.6, "keep the mean of the workers' weights, which is even better"),
        ],
    )
    def test_which_to_keep(self, centre, mean, says):
        of_seeds = self.of((centre, centre), (mean, mean))
        sprung = {1: elastic_averaging.mean_of(of_seeds)}
        better = {1: elastic_averaging.centre_against_mean(of_seeds)}
        assert says in elastic_averaging.answer(sprung, better)

    def test_none_where_a_worker_is_as_good(self):
        sprung = {1: elastic_averaging.mean_of(self.of((0.5,), (0.5,), workers=0.6))}
        assert elastic_averaging.answer(sprung, {1: 0}).startswith("Not to be said here")


@pytest.mark.long
def test_a_spring_keeps_workers_together_and_makes_their_mean_better(numbers):
    by_strength = [numbers["sprung"][pull] for pull in sorted(numbers["sprung"])]
    distances = [one.distance for one in by_strength]
    assert distances == sorted(distances, reverse=True)
    assert by_strength[-1].mean > by_strength[0].mean + 0.1


@pytest.mark.long
def test_the_mean_of_workers_trained_apart_is_worse_than_they_are(numbers):
    apart = numbers["sprung"][0]
    assert apart.mean < statistics.mean(apart.workers)


@pytest.mark.long
@pytest.mark.parametrize("rate", elastic_averaging.ETAS)
def test_the_limit_of_stability_is_found_where_the_formula_has_it(numbers, rate):
    expected = elastic_averaging.stable_up_to(rate)
    assert numbers["boundary"][rate] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("workers", "above"), [(1, 0.0), (3, 0.0), (5, 0.0), (2, 0.02), (4, 0.005)]
)
def test_the_formula_is_exact_for_odd_numbers_of_workers(workers, above):
    """By the eigenvalues of a round, in which one worker after the other takes its turn."""

    def largest(alpha, rate=0.6):
        a_round = np.eye(workers + 1)
        for worker in range(workers):
            turn = np.eye(workers + 1)
            turn[worker, worker] = 1 - rate - alpha
            turn[worker, -1] = turn[-1, worker] = alpha
            turn[-1, -1] = 1 - alpha
            a_round = turn @ a_round
        return max(abs(np.linalg.eigvals(a_round)))

    limit = elastic_averaging.stable_up_to(0.6)
    assert largest(0.999 * limit) < 1
    if above:
        assert largest((1 + above) * limit) < 1
        assert largest(1.1 * limit) > 1
    else:
        assert largest(1.001 * limit) > 1


@pytest.mark.long
def test_an_even_number_of_workers_stands_a_little_more():
    found = elastic_averaging.unstable_from(1.0, 4)
    limit = elastic_averaging.stable_up_to(1.0)
    assert 1.005 * limit < found < 1.03 * limit
