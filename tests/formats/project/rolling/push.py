"""A web process that schedules so many jobs: `python -m rolling.push NAME COUNT`."""

import sys

import django


def main() -> None:
    """Each tenth job goes into another queue; each fourth has a key."""
    django.setup()
    import django_delayq as delayq
    from rolling.tasks import note

    for number in range(int(sys.argv[2])):
        name = f"{sys.argv[1]} {number}"
        delayq.schedule(note, name, key=name if number % 4 == 0 else None, queue="quick" if number % 10 == 9 else "orders")


if __name__ == "__main__":
    main()
