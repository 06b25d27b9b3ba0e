# client.py, with the standard library only
import json
import os
import urllib.error
import urllib.request
import uuid


def call(method, path, body=None, key=None):
    headers = {"Authorization": f"Bearer {os.environ['QUEUE_TOKEN']}", "Content-Type": "application/json"}
    if key:
        headers["Idempotency-Key"] = key
    raw = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{os.environ['QUEUE_URL']}/{path}", raw, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


# To retry after a timeout, send the same key again. It schedules no second job.
order = {"task": "orders.tasks.close_order", "args": [42], "delay": "30m"}
status, job = call("POST", "jobs", order, key=str(uuid.uuid4()))
print(status, job["id"])
print(call("GET", f"jobs/{job['id']}")[1]["state"])
print(call("POST", f"jobs/{job['id']}/cancel", {"reason": "paid"})[1]["change"])
