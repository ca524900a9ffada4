"""A part of the random requests of fuzz.py; run more of them by hand."""

from serve.fuzz import run


def test_random_requests_are_answered_properly():
    outcomes, problems = run(300, seed=1)
    assert not problems, "\n".join(problems)
    statuses = {outcome.status for outcome in outcomes}
    assert {200, 400, 404, 405, 413} <= statuses
