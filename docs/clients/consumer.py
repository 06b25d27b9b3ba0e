# consumer.py, with the standard library only
import json
import os
import time
import urllib.error
import urllib.request


def call(verb, body):
    headers = {"Authorization": f"Bearer {os.environ['QUEUE_TOKEN']}", "Content-Type": "application/json"}
    address = f"{os.environ['QUEUE_URL']}/queues/parcels/{verb}"
    while True:
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=70) as response:
                return json.load(response)["messages"]
        except urllib.error.HTTPError as error:
            if error.code not in (429, 502, 503, 504):
                raise
            time.sleep(int(error.headers.get("Retry-After", 1)))
        except OSError:  # no response; it is safe to send the same request again
            time.sleep(1)


def pack(parcel):
    print("packed", parcel["order"], flush=True)


while True:
    packed, failed = [], []
    for message in call("pull", {"n": 10, "wait": 60, "lease": "1m"}):
        claim = {"id": message["id"], "fence": message["fence"]}
        try:
            pack(message["body"])
        except Exception as error:
            failed.append({**claim, "reason": repr(error)})
        else:
            packed.append(claim)
    if packed:
        call("ack", {"messages": packed})
    if failed:
        call("retry", {"messages": failed})
