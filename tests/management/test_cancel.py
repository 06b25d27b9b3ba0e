"""`delayq cancel`, and the common parts of all commands that act on jobs: ids, keys, filters, confirmation, correct counts."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

import django_delayq as delayq
from django_delayq import ids
from django_delayq.console import verbs
from django_delayq.models import Event, Job
from django_delayq.producer import acts, changes
from django_delayq.producer.task import registry
from tests.management.conftest import lose_redis
from tests.tasks_for_tests import close_order


def test_a_job_is_cancelled_by_its_id(run, orders):
    [job] = orders.scheduled()
    answer = run("cancel", job.id, "--reason", "paid by phone")
    assert (answer.code, answer.out) == (0, "cancel: 1 done.\n")
    orders.fold()
    assert Job.objects.get().state == "cancelled"
    event = Event.objects.get(kind="cancelled")
    assert event.actor.startswith("cli:")
    assert event.reason == "paid by phone"


def test_the_short_form_of_an_id_serves_as_well(run, orders):
    [job] = orders.scheduled()
    assert run("cancel", ids.short(job.id)).code == 0
    assert orders.in_redis(job) == "finished"


def test_the_answer_as_json_names_each_job(run, orders):
    first, second = orders.scheduled(2)
    answer = run("cancel", first.id, second.id, "--json")
    assert answer.code == 0
    assert answer.json == {
        "verb": "cancel",
        "jobs": [{"id": ids.short(first.id), "change": "done"}, {"id": ids.short(second.id), "change": "done"}],
        "counts": {"done": 2},
    }


def test_a_job_is_cancelled_by_its_key(run, orders):
    [job] = orders.scheduled(key="o:7")
    assert run("cancel", "--key", "o:7", "--queue", "orders").code == 0
    assert orders.in_redis(job) == "finished"


def test_the_answer_about_a_key_as_json(run, orders):
    orders.scheduled(key="o:7")
    answer = run("cancel", "--key", "o:7", "--queue", "orders", "--json")
    assert answer.json == {"verb": "cancel", "jobs": [{"key": "o:7", "change": "done"}], "counts": {"done": 1}}


def test_an_unknown_key_is_said_and_gives_exit_code_1(run, orders):
    answer = run("cancel", "--key", "o:8", "--queue", "orders")
    assert answer.code == 1
    assert answer.lines == ["cancel: 1 unknown.", "  o:8: unknown."]


def test_a_key_without_its_queue_is_refused(run, orders):
    answer = run("cancel", "--key", "o:7")
    assert answer.code == 2
    assert "Add --queue" in answer.error


def test_a_filter_takes_the_unfinished_jobs_of_a_queue(run, orders):
    jobs = orders.scheduled(3)
    orders.ended("ack")
    answer = run("cancel", "--queue", "orders")
    assert answer.out == "cancel: 3 done.\n"
    assert {orders.in_redis(job) for job in jobs} == {"finished"}


def test_filters_by_task_and_state_narrow_the_choice(run, orders):
    orders.scheduled(2)
    orders.running()
    answer = run("cancel", "--task", close_order.name, "--state", "scheduled", "--json")
    assert answer.json["counts"] == {"done": 2}


def test_a_limit_takes_the_oldest_first(run, orders):
    first, second = orders.scheduled(2)
    run("cancel", "--queue", "orders", "--limit", "1")
    assert (orders.in_redis(first), orders.in_redis(second)) == ("finished", "scheduled")


def test_a_scope_narrows_the_choice(run, orders):
    first, second, third = orders.scheduled(3)
    Job.objects.filter(pk=first.id).update(scope="a")
    Job.objects.filter(pk=second.id).update(scope="b")
    assert run("cancel", "--scope", "a", "--search", "state:scheduled OR state:running", "--json").json["counts"] == {"done": 1}
    assert [orders.in_redis(job) for job in (first, second, third)] == ["finished", "scheduled", "scheduled"]
    assert [row["id"] for row in run("list", "--scope", "b", "--json").json] == [second.short_id]


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_a_limit_below_1_is_refused_instead_of_meaning_all(run, orders, limit):
    [job] = orders.scheduled()
    answer = run("cancel", "--queue", "orders", "--limit", limit)
    assert "--limit" in answer.error
    assert orders.in_redis(job) == "scheduled"


def test_nothing_named_is_refused(run, orders):
    answer = run("cancel")
    assert answer.code == 2
    assert answer.error.startswith("Select jobs")


@pytest.mark.parametrize("empty", ["--key", "--task", "--scope"])
def test_an_empty_value_does_not_widen_the_choice_to_the_whole_queue(run, orders, empty):
    """This happens with `--key "$KEY"` in a script where KEY is not set."""
    [job] = orders.scheduled()
    answer = run("cancel", empty, "", "--queue", "orders")
    assert answer.code == 2
    assert empty in answer.error
    assert orders.in_redis(job) == "scheduled"


@pytest.mark.parametrize("other", [("--key", "o:7", "--queue", "orders"), ("--state", "running"), ("--limit", "1")])
def test_ids_together_with_another_choice_are_refused(run, orders, other):
    """A command that used one choice and ignored the other would change jobs that the user did not mean."""
    [job] = orders.scheduled(key="o:7")
    answer = run("cancel", job.id, *other)
    assert answer.code == 2
    assert other[0] in answer.error
    assert orders.in_redis(job) == "scheduled"


def test_a_key_together_with_a_filter_is_refused(run, orders):
    [job] = orders.scheduled(key="o:7")
    answer = run("cancel", "--key", "o:7", "--queue", "orders", "--state", "running")
    assert answer.code == 2
    assert orders.in_redis(job) == "scheduled"


def test_a_filter_that_leaves_nothing_is_no_failure(run, orders):
    assert run("cancel", "--queue", "orders").out == "No matching jobs.\n"
    assert run("cancel", "--queue", "orders", "--json").json["jobs"] == []


def test_counts_are_honest(run, orders):
    running, finished = orders.running(), orders.ended()
    scheduled = orders.scheduled(3)
    nobody = uuid.uuid4()
    answer = run("cancel", *[job.id for job in scheduled], running.id, finished.id, nobody)
    assert answer.code == 1
    assert answer.lines == [
        "cancel: 3 done, 1 running, 1 already finished, 1 unknown.",
        f"  {ids.short(running.id)}: running. A cancellation was requested. The task can stop by itself and is not retried.",
        f"  {ids.short(finished.id)}: already finished.",
        f"  {ids.short(nobody)}: unknown.",
    ]


def test_counts_as_json_are_honest_too(run, orders):
    running = orders.running()
    scheduled = orders.scheduled(3)
    answer = run("cancel", *[job.id for job in scheduled], running.id, "--json")
    assert answer.code == 1
    assert answer.json["counts"] == {"done": 3, "running": 1}
    assert answer.json["jobs"][-1] == {"id": ids.short(running.id), "change": "running"}


def test_a_running_job_gets_a_request(run, orders):
    job = orders.running()
    run("cancel", job.id)
    orders.fold()
    assert Job.objects.get().cancel_requested


def test_a_running_job_is_aborted_and_the_event_says_so(run, orders):
    running, scheduled = orders.running(), orders.scheduled()[0]
    answer = run("cancel", running.id, scheduled.id, "--abort", "--reason", "runs wild")
    assert answer.code == 1
    assert answer.lines == [
        "cancel: 1 done, 1 running.",
        f"  {ids.short(running.id)}: running. An abort was requested. The task ends within seconds and is not retried.",
    ]
    event = Event.objects.get(kind="cancel_requested")
    assert (event.detail, event.reason, event.actor[:4]) == ({"abort": True}, "runs wild", "cli:")
    Event.objects.all().delete()
    orders.fold()
    told = Event.objects.filter(kind="cancel_requested").values_list("job_id", "detail", "reason")
    assert list(told) == [(running.id, {"abort": True}, "runs wild")], "the mirror tells the same"


def test_a_row_that_redis_does_not_have_yet_is_cancelled(run, orders, monkeypatch):
    job = orders.unpublished(monkeypatch)
    assert run("cancel", job.id).code == 0
    assert Job.objects.get().state == "cancelled"


def test_a_job_that_another_queue_holds_is_unknown_in_this_one(run, orders):
    [job] = orders.scheduled()
    assert run("cancel", job.id, "--queue", "default").lines[0] == "cancel: 1 unknown."
    assert orders.in_redis(job) == "scheduled"


@pytest.mark.parametrize("id", ["7", "0191-not-a-uuid", "!" * 22])
def test_a_malformed_id_is_a_usage_error(run, orders, id):
    [job] = orders.scheduled()
    answer = run("cancel", job.id, id)
    assert answer.code == 2
    assert f"{id!r} is not a job id" in answer.error
    assert orders.in_redis(job) == "scheduled", "nothing is done when one of the ids cannot be read"


def test_an_unknown_queue_comes_with_the_nearest_name(run, orders):
    answer = run("cancel", "--queue", "oders")
    assert answer.code == 2
    assert "(did you mean 'orders'?). Available queues: default, orders, redis." in answer.error


def test_an_unknown_task_comes_with_the_nearest_name(run, orders):
    answer = run("cancel", "--task", "tests.tasks_for_tests.close_oder")
    assert answer.code == 2
    assert f"did you mean '{close_order.name}'?" in answer.error


@pytest.mark.parametrize("named", ["id", "key", "filter"])
def test_a_dry_run_changes_nothing(run, orders, named):
    [job] = orders.scheduled(key="o:7")
    words = {"id": [job.id], "key": ["--key", "o:7", "--queue", "orders"], "filter": ["--queue", "orders"]}[named]
    assert run("cancel", *words, "--dry-run").out.startswith("Would cancel")
    assert run("cancel", *words, "--dry-run", "--json").json == {"would": "cancel", "jobs": 1}
    assert orders.in_redis(job) == "scheduled"
    assert orders.mirror.log.length() == 0


def test_a_dry_run_names_the_first_five(run, orders):
    jobs = orders.scheduled(6)
    shown = ", ".join(ids.short(job.id) for job in jobs[:5])
    assert run("cancel", "--queue", "orders", "--dry-run").out == f"Would cancel 6 jobs: {shown}, ….\n"


def test_many_jobs_by_a_filter_are_not_touched_without_a_person_or_yes(run, orders):
    jobs = orders.scheduled(20)
    answer = run("cancel", "--queue", "orders")
    assert answer.code == 2
    assert "--yes" in answer.error
    assert "--dry-run" in answer.error
    assert {orders.in_redis(job) for job in jobs} == {"scheduled"}


def test_yes_answers_the_question_beforehand(run, orders):
    orders.scheduled(20)
    assert run("cancel", "--queue", "orders", "--yes").out == "cancel: 20 done.\n"


def test_a_person_may_say_yes(run, orders, capsys):
    orders.scheduled(20)
    assert run("cancel", "--queue", "orders", typed="y").code == 0
    assert capsys.readouterr().err == "This will cancel 20 jobs. Continue? [y/N] "


@pytest.mark.parametrize("typed", ["", "n", "yep"])
def test_a_person_may_say_no(run, orders, typed):
    jobs = orders.scheduled(20)
    answer = run("cancel", "--queue", "orders", typed=typed)
    assert (answer.code, answer.error) == (1, "Nothing was changed.")
    assert orders.in_redis(jobs[0]) == "scheduled"


def test_the_question_does_not_spoil_the_json(run, orders):
    orders.scheduled(20)
    assert run("cancel", "--queue", "orders", "--json", typed="yes").json["counts"] == {"done": 20}


def test_ids_are_explicit_enough_to_need_no_confirmation(run, orders):
    jobs = orders.scheduled(20)
    assert run("cancel", *[job.id for job in jobs]).code == 0


def test_redis_down_is_one_sentence(run, orders, settings):
    [job] = orders.scheduled()
    lose_redis(settings)
    answer = run("cancel", job.id)
    assert (answer.code, answer.out) == (1, "")
    assert answer.error.startswith("Redis at unix:/nowhere/delayq.sock, db 0 is not available")
    assert "\n" not in answer.error


def test_what_was_done_before_redis_went_down_is_told(run, orders, settings, monkeypatch):
    jobs = orders.scheduled(3)
    monkeypatch.setattr(changes, "MOST", 2)  # jobs by one call

    def failing(targets, **options):
        for number, answer in enumerate(acts.cancel_each(targets, **options)):
            yield answer
            if number == 1:
                lose_redis(settings)

    monkeypatch.setitem(verbs.VERBS, "cancel", replace(verbs.VERBS["cancel"], each=failing))
    answer = run("cancel", *[job.id for job in jobs], "--json")
    assert answer.code == 1
    assert answer.json["counts"] == {"done": 2}
    assert "is not available" in answer.error
    assert f"1 of 3 jobs was not changed. {jobs[2].short_id}: " in answer.error


def test_after_a_lost_reply_the_result_is_unknown(run, orders, lost_cancel):
    jobs, over = orders.scheduled(2), orders.ended("ack")
    answer = run("cancel", *[job.id for job in (*jobs, over)])
    assert answer.code == 1
    assert f"The result for 2 of 3 jobs is unknown. {jobs[0].short_id}, {jobs[1].short_id}: Redis at here " in answer.error
    assert answer.error.endswith("Look at these jobs again before you repeat the command.")
    assert [orders.in_redis(job.id) for job in jobs] == ["finished"] * 2


def test_a_search_names_the_jobs(run, orders):
    orders.ended("fail")
    near, far = orders.scheduled(delay="1m")[0], orders.scheduled(delay="3d")[0]
    answer = run("cancel", "--search", "after:+2d task:close_order", "--json")
    assert [job["id"] for job in answer.json["jobs"]] == [ids.short(far.id)]
    assert run("cancel", "--search", f"id:{near.id}").out == "cancel: 1 done.\n"


@pytest.mark.parametrize("search", ['task:""', 'error:""', 'key:""', 'queue:orders ""'])
def test_a_value_that_is_empty_names_no_job(run, orders, search):
    orders.scheduled()
    answer = run("cancel", "--search", search)
    assert (answer.code, "needs a value" in answer.error) == (2, True)


def test_a_part_of_a_name_that_stands_for_several_tasks_is_refused(run, orders, monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    delayq.task(name="shop.close_order_later", queue="orders")(lambda: None)
    orders.scheduled()
    answer = run("cancel", "--search", "task:close_order")
    assert (answer.code, "Select one with --task" in answer.error, "shop.close_order_later" in answer.error) == (2, True, True)


def test_a_search_and_ids_do_not_mix(run, orders):
    [job] = orders.scheduled()
    answer = run("cancel", job.id, "--search", "state:scheduled")
    assert answer.code == 2
    assert "--search" in answer.error


def test_forget_frees_a_key_that_a_job_has_by_once_for(run, orders):
    one = close_order.using(key="o:7", once_for="24h")
    first = one.schedule(7)
    assert orders.claim()
    named = ("--key", "o:7", "--queue", "orders")
    assert run("forget", *named, "--dry-run").out == "Would forget the job with the key 'o:7'.\n"
    assert run("forget", *named).out.splitlines() == ["forget: 1 running.", "  o:7: running."]
    answer = run("forget", *named, "--force", "--reason", "it hangs")
    assert (answer.code, answer.out) == (0, "forget: 1 done.\n")
    assert Event.objects.get(kind="forgot", job=first.id).reason == "it hangs"
    assert run("forget", first.id).code == 1
