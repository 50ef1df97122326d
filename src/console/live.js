// Once a second, replaces the parts of the page that have changed. The page works without it.
const pause = document.getElementById("pause");
pause.parentElement.hidden = false;

// What the focused element is called in the new contents of its part.
const name = (element) => element.id || element.getAttribute("href");

async function refresh() {
  try {
    if (pause.checked || document.hidden) return;
    const answer = await fetch(location.pathname + location.search, { headers: { "x-live": "1" } });
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
    setTimeout(refresh, 1000);
  }
}
setTimeout(refresh, 1000);
