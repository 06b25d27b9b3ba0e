// Keeps a part of a page fresh: asks for it every few seconds, unless the tab is hidden or somebody writes, chooses or marks text in it.
(() => {
  "use strict";
  const live = document.getElementById("delayq-live");
  const every = document.getElementById("delayq-every");
  const told = document.getElementById("delayq-told");
  if (!live || !every || !told) return;
  const KEY = "delayq.refresh";
  const LONGEST = 60; // seconds between attempts while there is no answer
  const FIELDS = "input:not([type=hidden], [type=checkbox]), select, textarea";
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

  const chosen = (select) => select.selectedIndex !== Math.max(0, [...select.options].findIndex((option) => option.defaultSelected));
  const written = () => [...live.querySelectorAll("input:not([type=hidden], [type=checkbox]), textarea")].some((field) => field.value !== field.defaultValue);
  const marked = () => {
    const selection = getSelection();
    return selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  };
  const held = () =>
    live.querySelector("input:checked, details.delayq-ask[open]") !== null ||
    [...live.querySelectorAll("select")].some(chosen) ||
    written() ||
    (live.contains(document.activeElement) && document.activeElement.matches(FIELDS)) ||
    live.matches(":active") || // a button is being pressed
    marked();

  const focusable = () => [...live.querySelectorAll("a[href], button, summary, input[type=checkbox]")];
  const names = (node) => node?.href || (node?.type === "checkbox" && node.value); // what stays the same when rows move
  const wide = () => [...live.querySelectorAll(".delayq-wide, .results, pre")];

  // Where the keyboard is: at the how-manieth link to that address, or box of that job; or at that place, where it is neither.
  const where = () => {
    const all = focusable();
    const index = all.indexOf(document.activeElement);
    const name = names(all[index]);
    const nth = name ? all.slice(0, index).filter((node) => names(node) === name).length : 0;
    return () => {
      if (index < 0) return;
      const fresh = focusable();
      const same = name ? fresh.filter((node) => names(node) === name)[nth] : undefined;
      (same ?? fresh[index])?.focus({ preventScroll: true });
    };
  };

  // The admin's own script knows the boxes that it met when the page was loaded; it is told of the new ones. The old ones are taken out
  // of their rows first: that script listens for as long as the page lives, and would keep whole tables in memory with them.
  const boxes = () => live.querySelectorAll("tr input.action-select");
  const meet = () => {
    if (typeof window.Actions === "function" && boxes().length && live.querySelector("#action-toggle")) window.Actions(boxes());
  };

  // The new text in place of the old one; what was unfolded stays unfolded, what was folded folded, and the keyboard stays where it was.
  const show = (text) => {
    const folds = [...live.querySelectorAll("details[id]")].map((details) => [details.id, details.open]);
    const scrolled = wide().map((node) => [node.scrollLeft, node.scrollTop]);
    const focus = where();
    const parsed = new DOMParser().parseFromString(text, "text/html");
    for (const box of boxes()) box.remove();
    live.replaceChildren(...parsed.body.childNodes);
    for (const [id, open] of folds) {
      const details = document.getElementById(id);
      if (details) details.open = open;
    }
    wide().forEach((node, index) => { [node.scrollLeft, node.scrollTop] = scrolled[index] ?? [0, 0]; });
    focus();
    meet();
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
    if (live.querySelector("[data-ended]")) { // nothing more will change
      every.closest("label").hidden = true;
      return;
    }
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
