#!/usr/bin/env bash
# client.sh, with curl
set -euo pipefail
curl --silent --show-error --fail-with-body "$QUEUE_URL/jobs" \
  --header "Authorization: Bearer $QUEUE_TOKEN" \
  --header "Content-Type: application/json" \
  --header "Idempotency-Key: close-order-42" \
  --data '{"task": "orders.tasks.close_order", "args": [42], "delay": "30m", "key": "close-order:42"}'
curl --silent --show-error --fail-with-body "$QUEUE_URL/keys/cancel" \
  --header "Authorization: Bearer $QUEUE_TOKEN" \
  --header "Content-Type: application/json" \
  --data '{"queue": "orders", "key": "close-order:42", "reason": "paid"}'
