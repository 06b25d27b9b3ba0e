"""Tests the statements of docs/howto/one-at-a-time.md, in the project that the page builds."""

import pytest
from orders import erp, tasks
from orders.models import Customer


@pytest.fixture
def customers(db):
    return [Customer.objects.create(), Customer.objects.create()]


def test_jobs_have_the_name_of_their_customer(delayq, customers, monkeypatch):
    import django_delayq

    seen = []
    put = erp.put

    def noted(customer_id):
        seen.append((django_delayq.current().name, put(customer_id)))

    monkeypatch.setattr(erp, "put", noted)
    one, other = customers
    tasks.synchronize.schedule(one.pk)
    tasks.synchronize.schedule(one.pk)
    tasks.synchronize.using(serial="shop").schedule(other.pk)
    delayq.run_due()
    assert sorted(seen) == sorted([(f"customer:{one.pk}", True), (f"customer:{one.pk}", True), ("shop", True)])


def test_an_older_writer_is_rejected(delayq, customers, monkeypatch):
    Customer.objects.update(turn=2**62)
    job = tasks.synchronize.schedule(customers[0].pk)
    written = []
    put = erp.put
    monkeypatch.setattr(erp, "put", lambda pk: written.append(put(pk)))
    delayq.run_due()
    assert (job.state, written) == ("succeeded", [False])


def test_an_export_is_one_of_five_of_its_tenant(delayq, monkeypatch, db):
    import django_delayq

    seen = []
    monkeypatch.setattr(erp, "export", lambda tenant, month: seen.append(django_delayq.current().name), raising=False)
    tasks.export.schedule("bikes", "2031-05")
    delayq.run_due()
    assert seen == ["tenant:bikes"]
