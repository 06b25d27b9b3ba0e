// Keeps parts of a page fresh: fetches the page anew and puts in the parts of the same ids. It rests while the tab is hidden, while
// somebody types or has opened something in them, and ends when the server no longer marks any part.
"use strict";
{
  const EVERY = 2000;
  const parts = () => [...document.querySelectorAll("[data-delayq-live]")];
  const busy = (node) =>
    node.querySelector("details[open], :focus") !== null ||
    [...node.querySelectorAll("input[type=text]")].some((input) => input.value !== "");
  const resting = () => document.hidden || parts().some(busy);

  const refresh = async () => {
    if (!parts().length) return;
    if (!resting()) {
      try {
        const answer = await fetch(location.href, { headers: { "X-Requested-With": "fetch" } });
        if (answer.ok && !answer.redirected) {
          const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
          for (const node of resting() ? [] : parts()) {
            const other = fresh.getElementById(node.id);
            if (other) node.replaceWith(document.adoptNode(other));
          }
        }
      } catch {
        // The server is away for a moment; the next turn asks again.
      }
    }
    setTimeout(refresh, EVERY);
  };
  addEventListener("DOMContentLoaded", () => parts().length && setTimeout(refresh, EVERY));
}
