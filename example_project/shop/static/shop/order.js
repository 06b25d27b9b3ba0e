// Counts down, and asks the server every second whether the order has changed; then loads the page anew.
"use strict";
const order = document.getElementById("order");
const left = document.getElementById("left");
const end = Date.now() + 1000 * Number(order.dataset.left);

function show(id, value) {
  const place = document.getElementById(id);
  if (place) place.textContent = value;
}

function count() {
  if (left) left.textContent = Math.max(0, Math.ceil((end - Date.now()) / 1000));
}

async function ask() {
  try {
    const answer = await fetch(order.dataset.url, { headers: { Accept: "application/json" } });
    const now = await answer.json();
    show("tries", now.partner_tries);
    show("polls", now.refund_polls);
    if (now.state !== order.dataset.state || now.steps !== Number(order.dataset.steps)) location.reload();
  } catch {
    // the shop is away for a moment; the next second asks again
  }
}

if (!["closed", "refunded"].includes(order.dataset.state)) {
  setInterval(count, 250);
  setInterval(ask, 1000);
}
