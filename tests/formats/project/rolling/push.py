"""A web process of one release: schedules so many jobs, and prints what it has put in: `python -m rolling.push WHO COUNT`."""

import json
import sys
import time

import django


def main() -> None:
    """Every kind in turn; each fourth has a key; behind each fifth a job for tomorrow is moved and cancelled (not if --plain)."""
    django.setup()
    import django_delayq as delayq
    from rolling.tasks import effect, note, stumble

    who, count = sys.argv[1], int(sys.argv[2])
    told: dict[str, dict[str, object]] = {}
    for number in range(count):
        task = (note, effect, stumble)[number % 3]
        name = f"{who} {number}"
        options = {"delay": (number % 7) * 0.2}
        if number % 4 == 0:
            options["key"] = name
        if number % 10 == 9:
            options["queue"] = "quick"
        job = delayq.schedule(task, name, **options)
        told[str(job.id)] = {"name": name, "runs": 1 + (task is stumble), "ends": "succeeded"}
        if number % 5 == 4 and "--plain" not in sys.argv:
            far = delayq.schedule(note, f"{name}, far", delay="1d", key=f"far {name}")
            assert far.reschedule(delay="2d") == "done"
            assert delayq.cancel(key=f"far {name}", queue="orders") == "done"
            told[str(far.id)] = {"name": f"{name}, far", "runs": 0, "ends": "cancelled"}
        time.sleep(0.01)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
