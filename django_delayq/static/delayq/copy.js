// Copies the text of a part of the page whose id a button names. Without scripts there is no such button: see `delayq-copies` in admin.css.
(() => {
  "use strict";
  const SHOWN = 2000; // milliseconds
  document.documentElement.classList.add("delayq-copies");

  // Where the clipboard is closed, as on pages that did not come by TLS, what is marked is copied in the old way.
  const marked = (node) => {
    const fold = node.closest("details:not([open])");
    if (fold) fold.open = true; // what is folded cannot be marked
    const range = document.createRange();
    range.selectNodeContents(node);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    const done = document.execCommand("copy");
    if (done) selection.removeAllRanges(); // else it stays marked, for the person to copy
    return done;
  };
  const copy = async (node) => {
    try {
      await navigator.clipboard.writeText(node.textContent);
      return true;
    } catch {
      return marked(node);
    }
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copies]");
    const node = button && document.getElementById(button.dataset.copies);
    if (!node || !(await copy(node))) return;
    const label = button.dataset.label ?? button.textContent;
    button.dataset.label = label;
    button.textContent = button.dataset.done;
    setTimeout(() => { button.textContent = label; }, SHOWN);
  });
})();
