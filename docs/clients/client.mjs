// client.mjs, Node 18 or newer
const call = async (method, path, body, key) => {
  const response = await fetch(`${process.env.QUEUE_URL}/${path}`, {
    method,
    headers: {
      Authorization: `Bearer ${process.env.QUEUE_TOKEN}`,
      "Content-Type": "application/json",
      ...(key && { "Idempotency-Key": key }),
    },
    body: body && JSON.stringify(body),
  });
  return [response.status, await response.json()];
};

const order = { task: "orders.tasks.close_order", args: [42], delay: "30m" };
const [status, job] = await call("POST", "jobs", order, crypto.randomUUID());
console.log(status, job.id);
console.log((await call("GET", `jobs/${job.id}`))[1].state);
console.log((await call("POST", `jobs/${job.id}/cancel`, { reason: "paid" }))[1].change);
