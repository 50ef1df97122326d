// Once a second, replaces the parts of the page that have changed. The page works without it.
const pause = document.getElementById("pause");
pause.parentElement.hidden = false;

// What the focused element is called in the new contents of its part.
const name = (element) => element.id || element.getAttribute("href");

async function refresh() {
  const began = performance.now();
  try {
    if (pause.checked || document.hidden) return;
    const signal = AbortSignal.timeout(10_000);
    const answer = await fetch(location.pathname + location.search, { headers: { "x-live": "1" }, signal });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const selected = getSelection();
    for (const old of document.querySelectorAll("[data-live]")) {
      const live = page.getElementById(old.id);
      if (!live || live.innerHTML === old.innerHTML) continue;
      // Text that is selected is about to be copied.
      if (!selected.isCollapsed && old.contains(selected.anchorNode)) continue;
      const focused = old.contains(document.activeElement) && name(document.activeElement);
      old.innerHTML = live.innerHTML;
      if (focused) [...old.querySelectorAll("a, button")].find((e) => name(e) === focused)?.focus();
    }
  } catch {
    document.getElementById("clock").textContent = document.body.dataset.stopped;
  } finally {
    // A page that takes long is asked for less often.
    setTimeout(refresh, Math.max(1000, 10 * (performance.now() - began)));
  }
}
// The clock alone is no reason to ask.
if (document.querySelector("main [data-live]")) setTimeout(refresh, 1000);
