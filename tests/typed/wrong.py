"""Project code in which a checker finds each of the mistakes."""

from __future__ import annotations

import django_delayq as delayq
from tests.typed.right import mail, pay_out, poll_bank, release, weekly


async def view() -> None:
    release("x")  # wrong
    release.schedule("x")  # wrong
    release.schedule(1, "a", "b")  # wrong
    release.schedule(1, delay="5m")  # wrong
    release.using(dely="5m")  # wrong
    release.using(delay=[5])  # wrong
    release.using(delay="5m").bind(1, 2)  # wrong
    release.delay(1)  # wrong
    pay_out.bind(1)  # wrong
    pay_out.using(on_conflict="kepp")  # wrong
    delayq.schedule(release, 1, delay=[5])  # wrong
    delayq.schedule(release, 1, on_conflict="kepp")  # wrong
    delayq.schedule(len, 1)  # wrong
    delayq.scheduel(release, 1)  # wrong
    delayq.lock(5)  # wrong
    delayq.task(version="2")  # wrong
    delayq.task(upgrade={1: 5})  # wrong
    delayq.current().checkpoint()  # wrong
    delayq.pul("mail")  # wrong
    delayq.schedule_many([1, 2])  # wrong
    delayq.schedule_many([release.using(delay=1)])  # wrong
    await delayq.aschedule(release, 1, run_at="2030-01-01")  # wrong
    await mail.aschedule(5)  # wrong
    job = await release.aschedule(1)
    await job.areschedule("10m")  # wrong
    int(await job.aresult()).shop()  # wrong
    job.reschedule("10m")  # wrong
    weekly()  # wrong
    weekly.schedule("eu", 5)  # wrong
    poll_bank.schedule(5)  # wrong
    delayq.periodic(5)  # wrong
    delayq.periodic()  # wrong
    delayq.periodic("0 3 * * *", every="10m")  # wrong
    delayq.periodic("0 3 * * *", "Europe/Berlin")  # wrong
    delayq.periodic("0 3 * * *", missed="never")  # wrong
    delayq.periodic("0 3 * * *", overlap="skp")  # wrong
    delayq.periodic("0 3 * * *", tz="Europe/Berlin")  # wrong
    delayq.periodic(every="10m", timezone="Europe/Berlin")  # wrong
    delayq.periodic(every=[10])  # wrong
    delayq.periodic("0 3 * * *")("shop.nightly")  # wrong


@delayq.task(retries=3)  # wrong
def late() -> None: ...
