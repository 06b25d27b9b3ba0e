// Counts down, and asks the server every second whether the order or the payouts have changed; then loads the page anew.
"use strict";
const order = document.querySelector("[data-url]");
const left = document.getElementById("left");
let leaves = false; // the browser loads another page; a reload would stop that
const end = Date.now() + 1000 * Number(order.dataset.left);

function show(id, value) {
  const place = document.getElementById(id);
  if (place) place.textContent = value;
}

function count() {
  if (left) left.textContent = Math.max(0, Math.ceil((end - Date.now()) / 1000));
}

async function ask() {
  if (leaves) return;
  try {
    const answer = await fetch(order.dataset.url, { headers: { Accept: "application/json" } });
    const now = await answer.json();
    show("polls", now.refund_polls);
    if (leaves) return;
    if (now.state !== order.dataset.state || now.steps !== Number(order.dataset.steps) || now.jobs !== order.dataset.jobs) location.reload();
  } catch {
    // the shop is away for a moment; the next second asks again
  }
}

addEventListener("beforeunload", () => {
  leaves = true;
});

if (!["closed", "refunded"].includes(order.dataset.state)) {
  setInterval(count, 250);
  setInterval(ask, 1000);
}
