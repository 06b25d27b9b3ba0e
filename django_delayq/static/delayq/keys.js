// Keys for the list of jobs: j and k go from job to job, o opens the job, x selects it, / searches, r refreshes, and ? lists the keys.
// They do nothing in a field or together with Ctrl, Alt or Meta, and they can be turned off.
(() => {
  "use strict";
  const list = document.getElementById("delayq-keys");
  const on = document.getElementById("delayq-keys-on");
  const button = document.getElementById("delayq-keys-show");
  if (!list || !on || !list.showModal) return;
  const KEY = "delayq.keys";
  const WRITING = "input, select, textarea, [contenteditable], dialog, dialog *";

  const links = () => [...document.querySelectorAll("#result_list tbody tr")].map((row) => row.querySelector("th a[href], td a[href]")).filter(Boolean);
  const here = (all) => {
    const row = document.activeElement?.closest("#result_list tbody tr");
    return row ? all.findIndex((link) => row.contains(link)) : -1;
  };
  const step = (by) => {
    const all = links();
    const at = here(all);
    const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
    all[next]?.focus();
    all[next]?.closest("tr").scrollIntoView({ block: "nearest" });
  };
  const open = () => {
    const all = links();
    all[here(all)]?.click();
  };
  const select = () => {
    const all = links();
    all[here(all)]?.closest("tr").querySelector("input.action-select")?.click();
  };
  const search = () => {
    const field = document.getElementById("searchbar");
    field?.focus();
    field?.select();
  };
  const show = () => list.showModal();
  const acts = {
    j: () => step(1),
    k: () => step(-1),
    o: open,
    x: select,
    "/": search,
    r: () => location.reload(),
    "?": show,
  };

  try { on.checked = localStorage.getItem(KEY) !== "off"; } catch { /* storage may be forbidden */ }
  on.addEventListener("change", () => {
    try { localStorage.setItem(KEY, on.checked ? "on" : "off"); } catch { /* then it holds for this page only */ }
  });
  document.getElementById("delayq-keys-close").addEventListener("click", () => list.close());
  if (button) {
    button.hidden = false;
    button.addEventListener("click", show);
  }
  document.addEventListener("keydown", (event) => {
    if (!on.checked || event.defaultPrevented || event.isComposing || event.repeat && event.key !== "j" && event.key !== "k") return;
    if (event.ctrlKey || event.altKey || event.metaKey || list.open) return;
    if (event.target instanceof Element && event.target.matches(WRITING) && event.target.type !== "checkbox") return;
    const act = Object.hasOwn(acts, event.key) ? acts[event.key] : undefined;
    if (!act) return;
    event.preventDefault();
    act();
  });
})();
