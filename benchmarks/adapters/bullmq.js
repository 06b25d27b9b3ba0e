// BullMQ on its defaults but for concurrency, and for jobs that have succeeded: these are removed.
"use strict";

const fs = require("fs");
const path = require("path");
const { fork } = require("child_process");
const { Queue, Worker } = require("bullmq");

const url = new URL(process.env.BENCH_REDIS || "redis://127.0.0.1:6379/0");
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const marks = process.env.BENCH_MARKS || "/tmp";
const processes = Number(process.env.BENCH_PROCESSES || 1);
const concurrency = Number(process.env.BENCH_THREADS || 0) || 100;
const keep = { removeOnComplete: true, removeOnFail: true };
const ONCE = 500;

const given = { task: "nothing", count: "1", first: "0", spread: "0", seconds: "0" };
for (const word of process.argv.slice(3)) {
  const [name, value] = word.replace(/^--/, "").split("=");
  given[name] = value === undefined ? "1" : value;
}

function args(number) {
  if (given.task === "nothing") return [String(Number(given.first) + number).padStart(100, "0")];
  if (given.task === "late") return [due(number)];
  return [Number(given.first) + number + 1, Number(given.seconds)];
}

function due(number) {
  return given.due === undefined ? null : Number(given.due) + (Number(given.spread) * number) / Number(given.count);
}

let keys = 0;

function options(date) {
  const unique = given.keyed ? { jobId: `job-${process.pid}-${keys++}` } : {};
  return date === null ? { ...keep, ...unique } : { ...keep, ...unique, delay: Math.max(0, Math.round(date * 1000 - Date.now())) };
}

async function put() {
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();
  const count = Number(given.count);
  const jobs = Array.from({ length: count }, (_, number) => [args(number), due(number)]);
  const began = process.hrtime.bigint();
  if (given.many) {
    for (let start = 0; start < count; start += ONCE) {
      await queue.addBulk(jobs.slice(start, start + ONCE).map(([data, date]) => ({ name: given.task, data, opts: options(date) })));
    }
  } else {
    for (const [data, date] of jobs) await queue.add(given.task, data, options(date));
  }
  console.log(JSON.stringify({ seconds: Number(process.hrtime.bigint() - began) / 1e9 }));
  await queue.close();
}

// Marks are gathered for some ms and written in one go, so that they cost no call to the system each.
function marker() {
  const file = fs.openSync(path.join(marks, `${process.pid}.mark`), "a");
  let gathered = [];
  setInterval(() => {
    if (!gathered.length) return;
    fs.writeSync(file, Buffer.from(Float64Array.from(gathered).buffer));
    gathered = [];
  }, 5);
  return (number) => gathered.push(number);
}

function now() {
  return (performance.timeOrigin + performance.now()) / 1000;
}

function work() {
  for (let number = 1; number < processes; number++) {
    fork(__filename, ["worker"], { env: { ...process.env, BENCH_PROCESSES: "1" } });
  }
  const mark = marker();
  const tasks = {
    nothing: async () => mark(now()),
    late: async ([date]) => mark(now() - date || 1e-9),
    nap: async ([number, seconds]) => {
      mark(number);
      await new Promise((done) => setTimeout(done, seconds * 1000));
      mark(-number);
    },
  };
  const worker = new Worker("bench", (job) => tasks[job.name](job.data), { connection, concurrency });
  worker.on("error", (error) => console.error(error));
}

const verb = process.argv[2];
if (verb === "facts") {
  console.log(
    JSON.stringify({
      name: "BullMQ",
      version: require("bullmq/package.json").version,
      settings: "defaults (30-second locks), concurrency 100 (tuned), finished jobs are removed",
      waits_in: "Redis",
      at_least_once: true,
      can_cancel: true,
      at_once: concurrency,
      many_by: "addBulk, 500 per call",
      unique: "`jobId`",
    }),
  );
} else if (verb === "put") {
  put();
} else {
  work();
}
