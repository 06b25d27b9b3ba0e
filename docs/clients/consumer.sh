#!/usr/bin/env bash
# consumer.sh, with curl and jq. It exits if the server does not response for a long time.
set -euo pipefail
call() {
  curl --silent --show-error --fail-with-body --max-time 70 --retry 10 --retry-all-errors "$QUEUE_URL/queues/parcels/$1" \
    --header "Authorization: Bearer $QUEUE_TOKEN" --header "Content-Type: application/json" --data "$2"
}
pack() {
  jq --exit-status --raw-output '"packed \(.order // error("a parcel without an order"))"' <<<"$1"
}
while true; do
  call pull '{"n": 10, "wait": 60, "lease": "1m"}' | jq --compact-output '.messages[]' | while read -r message; do
    claim=$(jq --compact-output '{messages: [{id, fence}]}' <<<"$message")
    if pack "$(jq '.body' <<<"$message")"; then
      call ack "$claim" >&2
    else
      call retry "$claim" >&2
    fi
  done
done
