// Keeps a part of a page fresh: asks for it every few seconds, unless the tab is hidden or somebody writes or chooses in it.
(() => {
  "use strict";
  const live = document.getElementById("delayq-live");
  const every = document.getElementById("delayq-every");
  const told = document.getElementById("delayq-told");
  if (!live || !every || !told) return;
  const KEY = "delayq.refresh";
  const LONGEST = 60; // seconds between attempts while there is no answer
  const FIELDS = "input:not([type=hidden]), select, textarea";
  let etag = live.dataset.etag ? `"${live.dataset.etag.replaceAll('"', "")}"` : "";
  let failures = 0;
  let timer = 0;
  let asking = false;

  const remembered = () => {
    try { return localStorage.getItem(KEY); } catch { return null; } // storage may be forbidden
  };
  const remember = (value) => {
    try { localStorage.setItem(KEY, value); } catch { /* then it holds for this page only */ }
  };

  const held = () =>
    live.querySelector("input:checked, details.delayq-ask[open]") !== null ||
    (live.contains(document.activeElement) && document.activeElement.matches(FIELDS));

  const focusable = () => [...live.querySelectorAll("a[href], button, summary")];

  // The new text in place of the old one; what was unfolded stays unfolded, and the keyboard stays where it was.
  const show = (text) => {
    const open = [...live.querySelectorAll("details[id][open]")].map((details) => details.id);
    const place = focusable().indexOf(document.activeElement);
    const parsed = new DOMParser().parseFromString(text, "text/html");
    live.replaceChildren(...parsed.body.childNodes);
    for (const id of open) {
      const details = document.getElementById(id);
      if (details) details.open = true;
    }
    if (place >= 0) focusable()[place]?.focus({ preventScroll: true });
  };

  const ask = async () => {
    const address = new URL(location.href);
    address.searchParams.set("live", "1");
    address.hash = "";
    const response = await fetch(address, {
      headers: etag ? { "If-None-Match": etag } : {},
      cache: "no-store",
      credentials: "same-origin",
      redirect: "manual",
      signal: AbortSignal.timeout(20000),
    });
    if (response.type === "opaqueredirect" || response.status === 403) {
      location.reload(); // logged out, or no longer allowed: the page itself says so
      return;
    }
    if (response.status === 304) return;
    if (!response.ok) throw new Error(String(response.status));
    const text = await response.text();
    if (held()) return; // somebody began to write meanwhile
    etag = response.headers.get("ETag") || "";
    show(text);
  };

  const tick = async () => {
    clearTimeout(timer);
    if (asking) return;
    const seconds = Number(every.value);
    if (!seconds || document.hidden) return; // a change of either comes back here
    if (held()) {
      told.textContent = told.dataset.held;
    } else {
      asking = true;
      try {
        await ask();
        failures = 0;
        told.textContent = "";
      } catch {
        failures += 1;
        told.textContent = told.dataset.trouble;
      }
      asking = false;
    }
    timer = setTimeout(tick, 1000 * Math.min(seconds * 2 ** failures, Math.max(seconds, LONGEST)));
  };

  const wait = () => {
    clearTimeout(timer);
    told.textContent = "";
    if (Number(every.value)) timer = setTimeout(tick, 1000 * Number(every.value));
  };

  const last = remembered();
  if ([...every.options].some((option) => option.value === last)) every.value = last;
  every.closest("label").hidden = false;
  every.addEventListener("change", () => {
    remember(every.value);
    wait();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) tick();
  });
  wait();
})();
