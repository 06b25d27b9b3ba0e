// consumer.mjs, Node 18 or newer
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

const call = async (verb, body) => {
  for (;;) {
    try {
      const response = await fetch(`${process.env.QUEUE_URL}/queues/parcels/${verb}`, {
        method: "POST",
        headers: { Authorization: `Bearer ${process.env.QUEUE_TOKEN}`, "Content-Type": "application/json" },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(70000),
      });
      if (response.ok) return (await response.json()).messages;
      if (![429, 502, 503, 504].includes(response.status)) throw new RangeError(await response.text());
      await pause(Number(response.headers.get("Retry-After") ?? 1));
    } catch (error) {
      if (error instanceof RangeError) throw error;
      await pause(1); // no response; it is safe to send the same request again
    }
  }
};

const pack = async (parcel) => {
  if (!parcel.order) throw new Error("a parcel without an order");
  console.log("packed", parcel.order);
};

for (;;) {
  const packed = [];
  const failed = [];
  for (const { id, fence, body } of await call("pull", { n: 10, wait: 60, lease: "1m" })) {
    try {
      await pack(body);
      packed.push({ id, fence });
    } catch (error) {
      failed.push({ id, fence, reason: String(error) });
    }
  }
  if (packed.length) await call("ack", { messages: packed });
  if (failed.length) await call("retry", { messages: failed });
}
