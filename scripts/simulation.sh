#!/usr/bin/env bash
# A busy day of the example shop, in a temporary folder. The exit code is 1 if the audit of the ledgers of the shop, the partner and the
# warehouse finds an order that was closed twice, early or never, or that the partner or the warehouse did not handle exactly once.
set -euo pipefail
cd "$(dirname "$0")/.."
DEMO_HOME=$(mktemp -d)
export DEMO_HOME

manage() { .venv/bin/python example_project/manage.py "$@"; }

clean_up() {
    manage shell -v 0 -c "from django_delayq.store.connection import embedded; embedded.stop(\"$DEMO_HOME/valkey\")"
    rm -rf "$DEMO_HOME"
}
trap clean_up EXIT

manage migrate --verbosity 0
manage stock
manage simulate --orders 1000 --worker --within 5s --spread 5s
