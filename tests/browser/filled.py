"""Fills the example with everything that a console shows: an ordinary day, and the worst job that is possible."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.browser.pages import JOBS, OPERATIONS, QUEUES, SCHEDULES, SET_ASIDE, TARGETS, TOKENS, WORKERS

if TYPE_CHECKING:
    from tests.browser.example import Example

VIEWS = ("scheduled", "running", "retrying", "failed", "cancelled", "succeeded")  # of the list of jobs
LONG, BIG, LINES = (
    200,
    65_000,
    150,
)  # characters of a name, of an argument, with which a job just fits into MAX_PAYLOAD; frames of a
# traceback, two lines each

FILL = """
import json, random
from datetime import timedelta
import django_delayq as delayq
from django_delayq import clock
from django_delayq.models import Attempt, Job, Operation, SetAside
from shop.payments import pay_out
from shop.tasks import close_order
LONG, BIG, LINES = {LONG}, {BIG}, {LINES}
chance = random.Random(7)
now = clock.now()
keep = {{}}

for number in range(60):
    delayq.schedule(close_order, 4000 + number, delay=chance.expovariate(1 / 2400), key=f"close-order:{{4000 + number}}")
keep["waiting"] = str(delayq.schedule(
    close_order, 4100, delay="1d", key="close-order:4100", backoff="15s 3m 10m 30m", max_attempts=5).id)
delayq.pause("partners", actor="admin:admin", reason="the partner moves house until noon")
delayq.pause(
    task="shop.tasks.poll_refund", until=now + timedelta(days=1), actor="admin:admin", reason="the bank answers with errors since noon",
)
delayq.pause(name="partner:north", actor="cli:ann")
delayq.set_rate("provider:north", "1/d", actor="admin:admin", reason="north allows few calls until Monday")
delayq.set_rate("merchant:" + "坏主题" * 60, "100/m", burst=20, actor="cli:ann")
for number in range(4):
    keep["rated"] = str(delayq.schedule(pay_out, "north", "boats").id)

TRACE = '''Traceback (most recent call last):
  File "/srv/shop/venv/lib/python3.11/site-packages/django_delayq/worker/executor.py", line 88, in call
    return task.function(*args, **kwargs)
  File "/srv/shop/shop/tasks.py", line 41, in write_to_partner
    answer = partner.post("/orders", json=payload, timeout=5)
  File "/srv/shop/shop/partner.py", line 17, in post
    raise PartnerDown(f"{{response.status_code}} {{response.reason}}")
'''
CAUSES = [
    ("shop.tasks.write_to_partner", "partners", "PartnerDown", "503 Service Unavailable", 9),
    ("shop.tasks.write_to_partner", "partners", "ReadTimeout", "no answer from partner.example within 5 s", 4),
    ("shop.tasks.poll_refund", "default", "KeyError", "'refund_id'", 2),
    ("shop.tasks.close_order", "orders", "Order.DoesNotExist", "Order matching query does not exist.", 1),
]
for task, queue, error_class, message, count in CAUSES:
    for number in range(count):
        then = now - timedelta(minutes=7 + 11 * number)
        job = Job.objects.create(
            queue=queue, task=task, key=f"{{task.rpartition('.')[2].replace('_', '-')}}:{{3900 + number}}", state="failed",
            run_at=then, created_at=then - timedelta(minutes=30), started_at=then, finished_at=then + timedelta(minutes=4),
            attempts=3, max_attempts=3, worker="web-2:4711:orders/1", error=f"{{error_class}}: {{message}}",
            fingerprint=error_class.lower()[:12], args=[3900 + number],
            kwargs={{"partner": "north", "total": 9007199254740993}} if queue == "partners" else {{}},
            published=then,
        )
        keep.setdefault("failed", str(job.pk))
        for attempt, minutes in enumerate((0, 1, 4), 1):
            began = then + timedelta(minutes=minutes)
            Attempt.objects.create(
                job_id=job.pk, number=attempt, fence=str(attempt), started_at=began, worker="web-2:4711:orders/1",
                finished_at=began + timedelta(seconds=5, milliseconds=17), outcome="failed" if attempt == 3 else "retried",
                error_class=error_class, message=message, traceback=TRACE + f"{{error_class}}: {{message}}",
            )

keep["refused"] = str(Job.objects.create(
    queue="orders", task="shop.refunds.refund", key="refund:3950", state="failed", run_at=now, created_at=now, started_at=now,
    finished_at=now, published=now, attempts=1, max_attempts=1, error="ValueError: no such account", fingerprint="noaccount",
    args=[3950, "Anna Müller", 12.5, "DE02 1203 0000 0000 2020 51", 1, 2],
    kwargs={{"address": {{"street": "坏主题 7", "zip": "10115"}}}},
).pk)
keep["operation"] = str(Operation.objects.create(
    verb="cancel", selection={{"task": "shop.tasks.close_order", "text": "key:close-order:*"}}, stage="paused", actor="admin:admin",
    reason="stock taking", counts={{"done": 120, "finished": 3}}, expected=500, seen=123, seconds=1200, started_at=now,
).pk)

def ended(name, **fields):
    then = now - timedelta(minutes=50)
    common = dict(
        queue="orders", task="shop.tasks.close_order", key="close-order:4100", run_at=then, created_at=then, published=then,
        finished_at=then + timedelta(minutes=2), state="cancelled", args=[4100], max_attempts=5,
    )
    job = Job.objects.create(**common | fields)
    keep[name] = str(job.pk)
    return job

ended("merged", ending="merged", merged_into=keep["waiting"], error=f"key held by {{keep['waiting']}}")
ended("replaced", ending="replaced", merged_into=keep["waiting"], error="replaced")
ended("expired", ending="expired", error="expired before it could run", expires_at=now - timedelta(minutes=49))
then = now - timedelta(minutes=49)
evicted = ended("evicted", key="", state="succeeded", attempts=1, started_at=then, worker="web-2:4711:orders/1")
for number, outcome, message in ((1, "evicted", "a deaf job was killed beside it"), (2, "succeeded", "")):
    began = evicted.run_at + timedelta(seconds=40 * number)
    Attempt.objects.create(
        job_id=evicted.pk, number=1, fence=f"e{{number}}", started_at=began, finished_at=began + timedelta(seconds=31),
        worker="web-2:4711:orders/1", outcome=outcome, message=message,
    )

def refused(item, job, **fields):
    common = dict(
        queue="orders", stream_id=f"{{clock.to_ms(now)}}-0", item=item, kind="failed", job_id=job, at=now, actor="web-2:4711:orders/1",
        raw=b"", code="22P02", text="invalid input syntax for type json", noticed_at=now,
    )
    kept = SetAside(**common | fields)
    kept.length = kept.length or len(kept.raw)
    kept.save()
    return str(kept.pk)

body = b'abc 1 0 f\\n{{"c": "ValueError", "m": "the card 4111 is refused", "t": "Traceback"}}'
keep["aside"] = refused(1, keep["failed"], raw=body)
refused(2, None, kind="invented", code="kind", text="no release up to this one knows it", raw=b"\\x00\\xff")

from django_delayq.models import Periodic, Tick
from django_delayq.periodic import schedules
from django_delayq.periodic.due_ticks import TickLoop
policies = dict(missed="all", overlap="skip", jitter="5m", args=[1])
delayq.periodic("0 3 * * *", timezone="Europe/Berlin", name="nightly-report", **policies)(close_order)
delayq.periodic(every="10m", name="poll-bank", args=[2])(close_order)
TickLoop().poll()
by = dict(actor="admin:admin", reason="the accountants asked for it")
schedules.create("weekly-eu", "shop.tasks.close_order", cron="0 8 * * 1", timezone="America/New_York", args=[3], **by)
schedules.create("monthly", "shop.tasks.close_order", cron="0 8 1 * *", timezone="Europe/Berlin", args=[4], **by)
schedules.turn_off("monthly", **by)
schedules.override("nightly-report", cron="30 2 * * *", timezone="Europe/Berlin", **by)
schedules.run_now("nightly-report", **by)
TickLoop().poll()
Periodic.objects.create(
    name="was-here", task="shop.tasks.gone", owner="code", cron="0 3 * * *", timezone="UTC", decided_to=now, created_at=now,
    retired_at=now,
)
broken = Periodic.objects.create(
    name="renamed", task="shop.tasks.renamed", owner="admin", cron="0 3 * * *", timezone="UTC", decided_to=now, created_at=now,
    problem={{"code": "task_unknown", "fields": {{"name": "shop.tasks.renamed"}}}},
)
night = Periodic.objects.get(name="nightly-report")
for days in range(1, 60):
    then = (now - timedelta(days=days)).replace(hour=2, minute=0, second=0, microsecond=0)
    job = None
    if days % 7:
        job = Job.objects.create(
            queue="orders", task="shop.tasks.close_order", run_at=then, created_at=then, published=then, attempts=1, max_attempts=10,
            started_at=then + timedelta(seconds=days * 3), finished_at=then + timedelta(minutes=2), args=[1],
            state="failed" if days % 5 == 0 else "succeeded", error="ValueError: no" if days % 5 == 0 else "",
            fingerprint="" if days % 5 else "valueerrorno",
        )
    fate = "scheduled" if job else ("missed" if days % 14 else "skipped")
    Tick.objects.create(schedule=night, at=then, run_at=then, fate=fate, job_id=job and job.pk, written_at=then)
keep |= {{
    "schedule": str(night.pk), "schedule-made": str(Periodic.objects.get(name="weekly-eu").pk), "schedule-broken": str(broken.pk),
}}
"""
OUTSIDE = """
from django_delayq.producer.stores import stores
from django_delayq.states import DELIVERY
then = now - timedelta(minutes=20)
said = {{"target": "partner.example:443", "status": 503, "ms": 812, "answer": "We move house.\\nBack at noon.", "redirects": 0}}
for number in range(7):
    well = number > 3
    job = Job.objects.create(
        queue="default", task=DELIVERY, key=f"paid:{{4200 + number}}", state="succeeded" if well else "failed", run_at=then,
        created_at=then, published=then, started_at=then, finished_at=then + timedelta(minutes=number), attempts=2, max_attempts=2,
        kwargs={{
            "url": f"https://{{'bank' if well else 'partner'}}.example/hook?signature=4711", "secret": "partner",
            "body": json.dumps({{"order": 4200 + number}}), "since": 1, "host": f"{{'bank' if well else 'partner'}}.example",
        }},
        error="" if well else "DeliveryFailed: partner.example:443 answered 503 after 812 ms: We move house.",
        fingerprint="" if well else "delivery503", worker="web-2:4711:ab/1",
        result={{"status": 202, "ms": 30 + number, "answer": "thanks", "complete": True}} if well else None,
    )
    for attempt, minutes in enumerate((0, 1), 1):
        Attempt.objects.create(
            job_id=job.pk, number=attempt, fence=f"d{{attempt}}", started_at=then + timedelta(minutes=minutes),
            finished_at=then + timedelta(minutes=minutes, seconds=1), worker="web-2:4711:ab/1",
            outcome="failed" if attempt == 2 and not well else "succeeded" if attempt == 2 else "retried",
            error_class="" if well and attempt == 2 else "DeliveryFailed", message="" if well and attempt == 2 else "503",
            problem=None if well and attempt == 2 else {{"code": "answer", "fields": said, "wait_ms": 60_000}},
        )
    keep["delivery"] = keep.get("delivery") or str(job.pk)
delayq.deliver("https://partner.example/hook", json=1, delay="1d")
keep["held"] = str(delayq.deliver("http://127.0.0.1:1/hook", json=1, max_attempts=9, backoff="1d").id)  # nobody listens there
for number in range(5):
    delayq.offer({{"order": number}}, to="shipping", delay=0 if number else "1d")
stores.link.execute("XGROUP", "CREATE", "shipping-out", "warehouse", "0", "MKSTREAM")
for number in range(4):
    message = delayq.push("mail", {{"to": f"customer-{{number}}@example.org"}}, key=f"mail:{{number}}")
    keep["message"] = keep.get("message") or str(message.id)
delayq.pull("mail", 3, lease="2h")
from django_delayq.contrib.gateway import tokens
tokens.make("partner", queues=["mail"], verbs=["*"], created_by="admin")
tokens.make("reports", queues=["*"], verbs=["get"], expires="30d", created_by="admin")
tokens.revoke(tokens.live("reports"))
"""
WORST = """
delayq.schedule(close_order, 4101, max_attempts=1, key="close-order:4101")  # really fails
name = ("name-" * LONG)[:LONG]
trace = "Traceback (most recent call last):\\n" + "".join(
    f'  File "/srv/shop/deep/module{{n}}.py", line {{n}}, in function{{n}}\\n    call(number={{n}})\\n' for n in range(LINES)
) + "ValueError: " + "x" * 1900
then = now - timedelta(hours=3)
worst = Job.objects.create(
    queue="orders", task=name, key=name, state="failed", run_at=then, created_at=then, started_at=then, finished_at=then,
    attempts=3, max_attempts=10, crashes=2, worker="w" * LONG, error="ValueError: " + "x" * 1900, fingerprint="worst",
    args=["y" * BIG], kwargs={{name: {{"nested": [1] * 20}}}}, published=then,
)
for n in range(3):
    Attempt.objects.create(
        job_id=worst.pk, number=n + 1, fence=str(n), started_at=then + timedelta(minutes=n), worker="w" * LONG,
        finished_at=then + timedelta(minutes=n, seconds=3), outcome="failed" if n == 2 else "retried",
        error_class="ValueError", message="x" * 1900, traceback=trace,
    )
keep["worst"] = str(worst.pk)
hostile = "<script>alert(1)</script>\\u202egnol\\u2066 "
keep["aside-worst"] = refused(
    3, worst.pk, queue="q" * 100, kind=hostile[:40], actor="w" * LONG, why=hostile * 50, code="c" * 40, text="x" * 1900,
    raw=(hostile.encode() + bytes(range(256))) * 350, length=10**9, tries=1000, stream_id="9" * 40 + "-" + "9" * 19,
)
awful = Periodic.objects.create(
    name=(hostile + name)[:LONG], task=name, owner="admin", cron=("0,1,2,3,4 " * 40)[:LONG], timezone="z" * 100,
    override_cron="7 " * 100, override_timezone=hostile[:60], jitter_ms=86_399_999, missed="all", overlap="wait",
    args=["y" * 20_000], decided_to=now, created_at=now, kwargs={{name: {{"nested": [1] * 20}}}},
    problem={{"code": "nobody_knows", "fields": {{"cause": hostile * 30}}}},
)
for n in range(120):
    Tick.objects.create(
        schedule=awful, at=now - timedelta(seconds=n), run_at=now, fate="scheduled", by_hand=bool(n % 3), written_at=now,
        actor=hostile * 5 + "w" * 50, job_id=worst.pk if n % 2 else None,
    )
keep["schedule-worst"] = str(awful.pk)
"""


def fill(example: Example, *, worst: bool = True) -> dict[str, str]:
    """Fills it. Returns ids of jobs: `waiting`, `failed`, a `refund` that has failed too, how others ended, and `worst` if that is
    wanted; that of an `operation`; and those of events set aside, `aside` and `aside-worst`, and of schedules, `schedule`,
    `schedule-made`, `schedule-broken` and `schedule-worst`.
    """
    code = (FILL + (OUTSIDE if example.outside else "") + (WORST if worst else "")).format(LONG=LONG, BIG=BIG, LINES=LINES)
    found: dict[str, str] = json.loads(example.run(f"{code}\nprint(json.dumps(keep))").splitlines()[-1])
    return found


def addresses(ids: dict[str, str]) -> dict[str, str]:
    """Returns every page with a GET address, by a short name."""
    jobs = {name: id for name, id in ids.items() if name != "operation" and not name.startswith(("aside", "schedule"))}
    made = ids["schedule-made"]
    return {
        "queues": QUEUES,
        "remedies": f"{QUEUES}remedies/",
        "purge": f"{QUEUES}orders/purge/",
        "trends": f"{QUEUES}trends/?span=1d",
        "pauses": f"{QUEUES}pauses/",
        "rates": f"{QUEUES}rates/",
        "queue": f"{QUEUES}partners/change/?span=7d",
        **({"queue-pulled": f"{QUEUES}mail/change/"} if "message" in ids else {}),
        "task": f"{JOBS}task/shop.tasks.write_5Fto_5Fpartner/?span=1d",
        **({"task-message": f"{JOBS}task/django_5Fdelayq.message/"} if "message" in ids else {}),
        **({"task-worst": f"{JOBS}task/{('name-' * LONG)[:LONG]}/"} if "worst" in ids else {}),
        "jobs": JOBS,
        **{f"jobs-{view}": f"{JOBS}?state={view}" for view in VIEWS},
        "jobs-nothing": f"{JOBS}?q=nowhere:to be found",
        "export": f"{JOBS}export/?state=failed",
        "copy": f"{JOBS}{ids['refused']}/copy/",
        **{f"job-{name}": f"{JOBS}{id}/change/" for name, id in jobs.items()},
        "failures": f"{JOBS}failures/",
        "edit": f"{JOBS}{ids['refused']}/edit/",
        "edit-as-json": f"{JOBS}{ids['failed']}/edit/",
        "start": f"{OPERATIONS}start/requeue/?state=failed",
        "operations": OPERATIONS,
        "operation": f"{OPERATIONS}{ids['operation']}/change/",
        "workers": WORKERS,
        "targets": TARGETS,
        "tokens": TOKENS,
        "schedules": SCHEDULES,
        **{name: f"{SCHEDULES}{id}/change/" for name, id in ids.items() if name.startswith("schedule")},
        **{f"schedule-{what}": f"{SCHEDULES}{made}/{what}/" for what in ("override", "edit", "delete")},
        "schedule-add": f"{SCHEDULES}add/",
        "set-aside": SET_ASIDE,
        **{f"event-{name}": f"{SET_ASIDE}{id}/change/" for name, id in ids.items() if name.startswith("aside")},
    }
