"""About 4,500 jobs of an ordinary day, as the desk finds them: finished jobs, failed jobs with their reasons, running jobs and
waiting jobs.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.browser.example import Example

ORDER, CUSTOMER, MOVED, REFUSED = 5193, 9, 5377, "customer5@example.com"
FAILED_BY_PARTNER, REMINDERS = 133, 24
ANGRY, ANGRY_MAILS = "anna@example.com", 7  # a customer who wants no more mails
GONE, GONE_JOBS = 4711, 9  # a customer who leaves; the jobs about this customer, which do not have the number in their arguments
MISSPELLED, RIGHT = "ben@exampel.com", "ben@example.com"
DECLINED = 6  # failures between ten o'clock and noon of yesterday
PATIENCE = 120  # seconds
COUNTED = "from django_delayq.models import Job\nprint(Job.objects.filter(**{fields!r}).count())"
COUNTS = 3  # jobs of the worker that died

HELD = """
import django_delayq as delayq
from tests.browser.desk.tasks import count_stock
delayq.schedule_many(count_stock.using(key=f"stock:{{n}}").bind(n) for n in range({counts}))
"""

LOAD = """
import json
from datetime import timedelta
import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.text import error_fingerprint
from django_delayq.models import Attempt, Job
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import QueueStore
from tests.browser.desk.tasks import order_paper, pack, remind, report, send_mail, tell_partner
now = clock.now()
jobs, attempts = [], []

TRACE = '''Traceback (most recent call last):
  File "/srv/shop/venv/lib/python3.11/site-packages/requests/sessions.py", line 703, in send
    r = adapter.send(request, **kwargs)
  File "/srv/shop/%s", line %s, in %s
    %s
'''

def ended(task, args, ago, took, key="", error=None, runs=1, place=None):
    "One that ended so many minutes ago, after so many seconds."
    name, queue = task.name, task.queue
    finished = now - timedelta(minutes=ago)
    began = finished - timedelta(seconds=took)
    job = Job(
        queue=queue, task=name, key=key, state="failed" if error else "succeeded", run_at=began, published=began, started_at=began,
        created_at=began - timedelta(minutes=5), finished_at=finished, attempts=runs, max_attempts=runs,
        worker=f"web-{{len(jobs) % 3}}:4711:{{queue}}/1", args=args, error=": ".join(error) if error else "",
        fingerprint=error_fingerprint(*error, f"{{place[0]}}:{{place[2]}}") if error else "",
    )
    jobs.append(job)
    for number in range(1, runs + 1):
        then = began - timedelta(minutes=runs - number)
        trace = TRACE % place + ": ".join(error) if error else ""
        attempts.append(Attempt(
            job_id=job.pk, number=number, fence=f"f{{number}}", started_at=then, finished_at=then + timedelta(seconds=took),
            worker=job.worker, outcome=("failed" if number == runs else "retried") if error else "succeeded",
            error_class=error[0] if error else "", message=error[1] if error else "", traceback=trace,
        ))
    return job

for number in range(2400):
    ended(send_mail, [f"customer{{number % 400 + 10}}@example.com", "your order"], 3 + number * 0.55, 0.2 + number % 7 / 10)
for number in range(1500):
    ended(tell_partner, [3000 + number], 3 + number * 0.9, 0.4 + number % 5 / 10, key=f"partner:{{3000 + number}}")
for number in range(40):
    ended(report, [1980 + number], 5 + number * 30, 240 + 17 * (number % 11))

call = ("shop/partner.py", 17, "call", "raise PartnerDown(answer)")
for number in range({down}):
    order = {order} if number == 6 else 5200 + number
    said = f"503 Service Unavailable for /orders/{{order}} (request {{0x2486054737c7 + 7919 * number:012x}})"
    error = ("shop.partner.PartnerDown", said)
    ended(tell_partner, [order], 5 + number * 4, 5, key=f"partner:{{order}}", error=error, runs=3, place=call)
for number in range(41):
    said = f"no answer from mail.example within {{5 + number % 3}} s"
    where = ("shop/mail.py", 31, "send", "smtp.send_message(mail)")
    error = ("TimeoutError", said)
    ended(send_mail, [f"customer{{number + 10}}@example.com", "your order"], 20 + number * 23, 8, error=error, place=where)
where = ("shop/mail.py", 40, "send", "raise Refused(recipient)")
said = "550 5.1.1 <{refused}>: mailbox unavailable"
ended(send_mail, ["{refused}", "your order"], 50, 1, error=("smtplib.SMTPRecipientsRefused", said), place=where, runs=2)
where = ("shop/mail.py", 40, "send", "raise Refused(recipient)")
said = "550 5.1.2 <{misspelled}>: no such host"
ended(send_mail, ["{misspelled}", "your order"], 40, 1, key="mail:ben", error=("shop.mail.Refused", said), place=where)
where = ("shop/shop/payment.py", 88, "charge", "raise CardDeclined(code)")
for number in range(2 * {declined}):
    day = now.replace(hour=10, minute=7 + 8 * (number % {declined}), second=0) - timedelta(days=number // {declined})
    if day < now:  # yesterday's, and today's in case that midnight is near
        ago, error = (now - day).total_seconds() / 60, ("shop.payment.CardDeclined", f"code {{number % 3}}: the bank says no")
        ended(report, [1900 + number], ago, 2, key=f"charge:{{number}}", error=error, place=where)
for number in range(40):  # a week ago reports were quick
    ended(report, [1940 + number], 7 * 1440 + 5 + number * 30, 60)
Job.objects.bulk_create(jobs, batch_size=200)
Attempt.objects.bulk_create(attempts, batch_size=200)

delayq.schedule_many(send_mail.using(delay=f"{{60 + n}}m").bind(f"customer{{n + 10}}@example.com", "newsletter") for n in range(300))
delayq.schedule_many(
    remind.using(delay=f"{{3 + n}}h", key=f"remind:{{n % 8 + 5}}:{{n}}").bind(n % 8 + 5, 5300 + n) for n in range({reminders} * 8)
)
delayq.schedule(remind, 77, {moved}, delay="5h", key="remind:77:{moved}")

delayq.schedule_many(send_mail.using(delay=f"{{2 + n}}h").bind("{angry}", f"offer {{n}}") for n in range({angry_mails}))
delayq.schedule_many(remind.using(delay=f"{{2 + n}}d", meta={{"customer": {gone}}}).bind(0, 6000 + n) for n in range({gone_jobs}))
delayq.schedule(remind, 88, 5378, delay="5h", key="remind:88:5378")
delayq.cancel(key="remind:88:5378", queue="mail", actor="admin:ines", reason="paid at the counter")
delayq.schedule(order_paper, 80, key="paper:80")
delayq.pause("letters", actor="admin:ines", reason="no paper")

def held(queue, worker, progress=""):
    "Claims the next job of that queue, which thus runs."
    store = QueueStore(stores.link, prefix=conf.get().prefix, queue=queue)
    for run in store.claim(worker, "n1", want=1, lease_ms=7_200_000, max_crashes=3).jobs:
        store.extend([(run.id, run.fence)], worker=worker, lease_ms=7_200_000, progress={{run.id: progress}} if progress else {{}})

delayq.schedule(report, 2024, key="report:2024")
held("reports", "web-2:4711:reports/1", "30/100")
delayq.schedule(pack, 5301, key="pack:5301:first")
held("orders", "web-2:4711:orders/1")
delayq.schedule(pack, 5301, key="pack:5301:second")
delayq.pause("partners", actor="admin:ines", reason="the partner moves house until noon")
delayq.schedule(tell_partner, 5400, key="partner:5400", queue="partners")
print(json.dumps({{"jobs": Job.objects.count()}}))
"""


def load(example: Example) -> dict[str, Any]:
    """Fills the example. The worker is stopped meanwhile, so that no other process claims the jobs that are to run. Another worker dies
    while it runs jobs.
    """
    example.worker.terminate()
    example.run(HELD.format(counts=COUNTS))
    other = example.another_worker("--queues", "stock")
    other.start()
    wait_for(example, COUNTS, state="running", queue="stock")
    other.kill()
    words = {
        "down": FAILED_BY_PARTNER, "order": ORDER, "refused": REFUSED, "reminders": REMINDERS, "moved": MOVED, "declined": DECLINED,
        "misspelled": MISSPELLED, "angry": ANGRY, "angry_mails": ANGRY_MAILS, "gone": GONE, "gone_jobs": GONE_JOBS,
    }  # fmt: skip
    found: dict[str, Any] = json.loads(example.run(LOAD.format(**words)).splitlines()[-1])
    example.worker.start()
    wait_for(example, COUNTS, state="succeeded", queue="stock")
    wait_for(example, 1, attempts=1, state="scheduled", key="paper:80")
    return found


def count(example: Example, **fields: Any) -> int:
    """Returns the number of rows with these values."""
    return int(example.run(COUNTED.format(fields=fields)).splitlines()[-1])


def wait_for(example: Example, wanted: int, **fields: Any) -> None:
    """Waits until so many rows have these values: rows change a moment later than Redis."""
    deadline = time.monotonic() + PATIENCE
    while (found := count(example, **fields)) != wanted:
        assert time.monotonic() < deadline, f"{found} and not {wanted} rows say {fields}"
        time.sleep(0.2)
